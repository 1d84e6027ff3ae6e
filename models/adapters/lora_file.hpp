#pragma once
// A LoRA adapter's files, as PEFT writes them: a directory with adapter_config.json and
// adapter_model.safetensors. Beside a matrix W of the model it has A [rank, in] and B [out, rank],
// and the layer computes W x + scale B (A x).
//
// Source: Hu et al., LoRA (2021); PEFT's LoraConfig.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/expected.hpp"
#include "models/config/model_config.hpp"
#include "models/safetensors.hpp"
#include "models/transformer_weights.hpp"

namespace kvhive {

/// Move-only; the files stay mapped as long as it lives.
class LoraFile {
 public:
  /// Errors name the file, the field or tensor, and what is expected: what kvhive does not compute
  /// (DoRA, biases, patterns of ranks, adapters of embeddings or experts) is refused.
  [[nodiscard]] static Expected<LoraFile> open(const std::filesystem::path& directory,
                                               const ModelConfig& config);

  /// What it has beside one matrix of the model.
  struct Pair {
    std::int32_t layer = 0;
    LayerWeight weight{};
    std::int32_t rank = 0, in = 0, out = 0;
    TensorView a, b;
  };
  /// In the order of the model's layers; at least one.
  std::span<const Pair> pairs() const { return pairs_; }
  float scale() const { return scale_; }

 private:
  explicit LoraFile(SafetensorsDirectory files) : files_(std::move(files)) {}

  SafetensorsDirectory files_;
  std::vector<Pair> pairs_;
  float scale_ = 1;
};

}  // namespace kvhive
