// A model's config.json. An accepted config must have usable shapes.

#include "base/check.hpp"
#include "models/layer_groups.hpp"
#include "models/model_config.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/scratch_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  static const testing::ScratchFile file("config.json");
  file.write(testing::FuzzInput(data, size).rest());
  const auto config = load_model_config(file.directory());
  if (!config) return 0;
  KV_CHECK(config->vocab_size > 0 && config->max_position_embeddings > 0);
  KV_CHECK(kv_layout(*config, one_group(*config), 16, config->dtype).block_bytes() > 0);
  return 0;
}
