#pragma once
// The largest step that a GpuTransformer allocates memory for.

#include <cstddef>
#include <cstdint>

namespace kvhive {

/// The largest step that there is room for.
struct GpuLimits {
  std::int32_t tokens = 2048;
  std::int32_t sequences = 128;
  std::int32_t logit_rows = 128;
  std::int32_t kv_tokens = 0;  ///< of one sequence, in whole blocks
  std::int32_t blocks = 0;     ///< of one sequence: columns of its block table
  std::int32_t likeliest = 20;
  /// Scratch for attention's states: a step that wants more attends in several calls.
  std::size_t state_bytes = std::size_t{128} << 20;
  std::size_t graphs = 32;  ///< shapes of decode steps that are remembered (decode_graphs.hpp)
  /// Products are not the device's but ours, in which a row's bits depend on that row alone
  /// (kernels/row_product.hpp): of bf16 or f16, widths are multiples of eight.
  bool is_batch_invariant = false;
};

}  // namespace kvhive
