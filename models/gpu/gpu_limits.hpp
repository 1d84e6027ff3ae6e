#pragma once
// The largest step that a GpuTransformer allocates memory for.

#include <cstddef>
#include <cstdint>

namespace kvhive {

/// The largest step that a GpuTransformer can run.
struct GpuLimits {
  std::int32_t tokens = 2048;
  std::int32_t sequences = 128;
  std::int32_t logit_rows = 128;
  std::int32_t kv_tokens = 0;  ///< longest sequence, in whole blocks
  std::int32_t blocks = 0;     ///< of the longest sequence: columns of the block table
  std::int32_t likeliest = 20;
  std::int32_t adapter_rank = 0;  ///< the most that an adapter has; 0: there are none
  /// Scratch for the states of attention. A step that needs more computes attention in several
  /// calls.
  std::size_t state_bytes = std::size_t{128} << 20;
  std::size_t graphs = 32;  ///< shapes of decode steps to keep graphs of (decode_graphs.hpp)
  /// True: products are computed by kernels/row_product.hpp instead of the device's library, and a
  /// row's bits do not depend on the batch. Widths of bf16 and f16 must be multiples of eight.
  bool is_batch_invariant = false;
};

}  // namespace kvhive
