#pragma once
// The one list of a model's tensors. Everything that loads, places or counts weights walks it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config/architecture.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// A matrix of one expert in a tensor of all experts, [experts, columns, wide]: it is the transpose
/// of a part of the expert's rows, its element (row, column) at [expert, column, first + row].
struct PackedMatrix {
  std::int32_t experts = 0;
  std::int32_t wide = 0;
  std::int32_t first = 0;
};

/// A matrix or vector of the model's files, perhaps with a bias.
struct ModelTensor {
  enum class Use : std::uint8_t { embedding, layer, final_norm, lm_head };

  Use use = Use::layer;
  std::int32_t layer = 0;                        ///< with Use::layer, as the next
  LayerWeight weight = LayerWeight::input_norm;  ///< what the layer uses it for
  std::int32_t expert = -1;                      ///< which expert's; -1: no expert's
  std::string name;                              ///< in the files, without ".weight" or ".bias"
  std::optional<PackedMatrix> packed{};          ///< where it lies, if not in a tensor of its own
  std::int32_t rows = 0;
  std::int32_t columns = 0;  ///< 0: a vector [rows], else a row-major matrix [rows, columns]
  bool has_bias = false;     ///< [rows]
  ProductDtype product = ProductDtype::model;
  Fusion fusion = Fusion::none;

  bool is_vector() const { return columns == 0; }
  std::string weight_name() const { return packed ? name : name + ".weight"; }
  std::string bias_name() const { return name + ".bias"; }
  /// Of the tensor weight_name(): of all experts, if it is packed.
  std::vector<std::int64_t> weight_shape() const;
  std::vector<std::int64_t> bias_shape() const { return {rows}; }
};

/// Every tensor that a model of this config has in its files: the embedding, the layers' weights,
/// the last norm and, unless it is tied to the embedding, the output matrix.
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

/// Weights and biases.
std::size_t count_with_biases(const std::vector<ModelTensor>& tensors);

}  // namespace kvhive
