#pragma once
// How a checkpoint's matrices are quantized, as "quantization_config" of its config.json says.
//
// Two forms are known, both of weights in FP8 E4M3 with scales beside them: "fp8" (as DeepSeek,
// Qwen and AutoFP8 publish it) and "compressed-tensors" with the format "float-quantized" (as
// llm-compressor writes it). Everything else is refused by name.

#include <cstdint>

#include "base/expected.hpp"
#include "base/json_file.hpp"

namespace kvhive {

/// A matrix in FP8 has its scales beside it: "X.weight_scale_inv" or "X.weight_scale" for
/// "X.weight". Both are what a code is multiplied by. Which matrices are quantized, the files say
/// by their dtypes. Scales for quantizing activations (input_scale) are not used: activations are
/// not quantized here.
struct Quantization {
  enum class Kind : std::uint8_t { none, fp8 };
  Kind kind = Kind::none;
  std::int32_t block_rows = 0;  ///< rows and columns that share a scale; 0: a scale is for the
                                ///< whole matrix or for a row, as the number of scales says
  std::int32_t block_columns = 0;
};

/// Reads "quantization_config" of a config.json, if there is one.
[[nodiscard]] Expected<Quantization> read_quantization(const JsonFields& fields);

}  // namespace kvhive
