// An operator's TOML file. Accepted options must be writable as a daemon's flags.

#include "config/options.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/scratch_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  static const testing::ScratchFile file("kvhive.toml");
  file.write(testing::FuzzInput(data, size).rest());
  Options options;
  if (!load_options(options, file.path()) || !check_options(options)) return 0;
  (void)to_flags(options);
  return 0;
}
