// A safetensors file: every entry that is accepted lies inside the file.

#include <numeric>

#include "models/safetensors.hpp"
#include "tests/fuzz/fuzz_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  const auto file = std::as_bytes(std::span(data, size));
  const auto tensors = parse_safetensors(file, "fuzzed");
  if (!tensors) return 0;
  // Reads all bytes of all tensors. ASan reports a byte outside the file.
  volatile std::byte last{};
  for (const auto& [name, tensor] : *tensors)
    for (const std::byte byte : tensor.bytes) last = byte;
  return 0;
}
