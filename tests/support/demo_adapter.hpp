#pragma once
// LoRA adapters of the demo model, and of models made of its weights.

#include <random>
#include <string>

#include "tests/support/safetensors_file.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {

/// A random adapter of the demo model, or of its first layers: of rank 4, for q and v of all layers
/// and one down_proj.
class DemoAdapter {
 public:
  explicit DemoAdapter(std::uint32_t seed, int layers = 4) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.2f);
    Tensors tensors;
    const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      Tensor a{{4, in}, std::vector<float>(4 * in)}, b{{out, 4}, std::vector<float>(4 * out)};
      for (float& value : a.values) value = normal(random);
      for (float& value : b.values) value = normal(random);
      tensors["base_model.model.model.layers." + name + ".lora_A.weight"] = std::move(a);
      tensors["base_model.model.model.layers." + name + ".lora_B.weight"] = std::move(b);
    };
    for (int layer = 0; layer < layers; ++layer) {
      add(std::to_string(layer) + ".self_attn.q_proj", 256, 256);
      add(std::to_string(layer) + ".self_attn.v_proj", 128, 256);
    }
    add(std::to_string(layers / 2) + ".mlp.down_proj", 256, 768);
    directory_.write("adapter_model.safetensors", safetensors(tensors));
    directory_.write("adapter_config.json",
                     R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "bias": "none"})");
  }
  std::string path() const { return directory_.path().string(); }

 private:
  TempDirectory directory_;
};

}  // namespace kvhive::testing
