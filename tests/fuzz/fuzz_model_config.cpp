// A model's config.json. An accepted config must have usable shapes, rotations and windows.

#include <cmath>

#include "base/check.hpp"
#include "models/layer_groups.hpp"
#include "models/config/load_model_config.hpp"
#include "models/rope.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/scratch_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvhive;
  static const testing::ScratchFile file("config.json");
  file.write(testing::FuzzInput(data, size).rest());
  const auto config = load_model_config(file.directory());
  if (!config) return 0;
  KV_CHECK(config->vocab_size > 0 && config->max_position_embeddings > 0);
  KV_CHECK(kv_layout(*config, one_group(*config), 16,
                     kv_dtype_of(KvCacheDtype::of_model, *config).value())
               .block_bytes() > 0);
  for (const RopeConfig& rope : {config->rope.full, config->rope.sliding}) {
    const Rope rotation(config->head_size, rope);
    for (const float frequency : rotation.frequencies())
      KV_CHECK(std::isfinite(frequency), frequency);
  }
  for (std::int32_t layer = 0; layer < config->layers; ++layer)
    KV_CHECK(config->window_of(layer) >= 0 && config->is_sparse(layer) <= (config->experts > 0));
  return 0;
}
