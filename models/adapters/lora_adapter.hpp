#pragma once
// A LoRA adapter, as PEFT writes it: a directory with adapter_config.json and
// adapter_model.safetensors. Beside a matrix W of the model it has A [rank, in] and B [out, rank],
// and the layer computes W x + scale B (A x).
//
// Source: Hu et al., LoRA (2021); PEFT's LoraConfig.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/expected.hpp"
#include "models/config/model_config.hpp"
#include "models/product/matmul.hpp"

namespace kvhive {

class LoraAdapter {
 public:
  /// Errors name the file, the field or tensor, and what is expected: what kvhive does not compute
  /// (DoRA, biases, patterns of ranks, adapters of embeddings or experts) is refused.
  [[nodiscard]] static Expected<LoraAdapter> load(const std::filesystem::path& directory,
                                                  const ModelConfig& config);

  /// Adds what the adapter adds to the product of a layer's matrix; nothing if it has none for it.
  /// The bits of a row of y depend only on its rows of x and y.
  /// \param x        [rows, in]
  /// \param y        [rows, out]
  /// \param scratch  grows as needed
  void add(std::int32_t layer, LayerWeight weight, std::span<const float> x, std::span<float> y,
           std::vector<float>& scratch) const;

  /// How many matrices it has something for.
  std::size_t size() const { return pairs_.size(); }
  /// Bytes of its matrices, f32 copies of the file's.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Pair {
    Matmul a, b;
    std::int32_t rank = 0, in = 0, out = 0;
  };

  std::map<std::pair<std::int32_t, LayerWeight>, Pair> pairs_;
  float scale_ = 1;
  std::size_t bytes_ = 0;
};

}  // namespace kvhive
