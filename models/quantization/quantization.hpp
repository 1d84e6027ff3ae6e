#pragma once
// How a checkpoint's matrices are quantized, as "quantization_config" of its config.json says.
//
// Known are weights in FP8 E4M3 with scales: "fp8" (as DeepSeek, Qwen and AutoFP8 publish it) and
// "compressed-tensors" with the format "float-quantized" (as llm-compressor writes it); and weights
// in integers of four or eight bits: "gptq", "awq" and "compressed-tensors" with the formats
// "pack-quantized" and "int-quantized"; "naive-quantized" is either. Everything else is refused by
// name.

#include <cstdint>

#include "base/expected.hpp"
#include "base/json_file.hpp"

namespace kvhive {

/// Which matrices are quantized, the files say by their names and dtypes; see quantized_matrix.hpp
/// for what lies beside a matrix. Activations are not quantized here, whatever scales for them
/// there are.
struct Quantization {
  enum class Kind : std::uint8_t { none, fp8, packed, int8, gptq, awq };
  /// What a scale is for where there are neither blocks nor groups. Some formats leave it to the
  /// number of scales.
  enum class ScaleOf : std::uint8_t { as_many_as_there_are, matrix, row };
  Kind kind = Kind::none;
  std::int32_t block_rows = 0;  ///< rows and columns that share a scale; 0: see `group`
  std::int32_t block_columns = 0;
  std::int32_t bits = 8;
  std::int32_t group = 0;  ///< columns of a row that share a scale; 0: see `scale_of`
  ScaleOf scale_of = ScaleOf::as_many_as_there_are;
  bool has_zeros = false;     ///< what is subtracted from codes is in the files
  bool lacks_one = false;     ///< such zeros are stored less 1, as GPTQ does it
  bool is_reordered = false;  ///< a tensor g_idx must say to which group each column belongs; it
                              ///< may also do so elsewhere

  bool operator==(const Quantization&) const = default;
};

/// Reads "quantization_config" of a config.json, if there is one.
[[nodiscard]] Expected<Quantization> read_quantization(const JsonFields& fields);

}  // namespace kvhive
