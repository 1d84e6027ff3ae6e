#pragma once
// The memory that paged_attention_cpu works in: running softmax states and one thread's scratch.
// Private to that kernel.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/check.hpp"
#include "hwy/aligned_allocator.h"
#include "kernels/attention_plan.hpp"

namespace kvhive {

using AlignedFloats = hwy::AlignedFreeUniquePtr<float[]>;

inline AlignedFloats allocate_floats(std::size_t count) {
  if (count == 0) return nullptr;
  AlignedFloats floats = hwy::AllocateAligned<float>(count);
  KV_CHECK(floats != nullptr, count);
  return floats;
}

/// Borrowed view of the states of some query rows: over the positions seen so far, the largest
/// score, the sum of exp(score - max), and acc = sum of exp(score - max) * v. A row that has seen
/// nothing has sum 0 and says nothing in max and acc.
struct SoftmaxStates {
  float* data = nullptr;
  std::size_t head_size = 0;

  /// Floats per row: acc, then max and sum, then padding that keeps rows on cache lines.
  static std::size_t stride(std::size_t head_size) { return (head_size + 2 + 15) / 16 * 16; }

  float* acc(std::size_t row) const { return data + row * stride(head_size); }
  float& max(std::size_t row) const { return acc(row)[head_size]; }
  float& sum(std::size_t row) const { return acc(row)[head_size + 1]; }
  SoftmaxStates from(std::int64_t row) const {
    return {data + row * static_cast<std::int64_t>(stride(head_size)), head_size};
  }
};

/// One thread's memory for tiles of up to `rows` query rows.
struct AttentionScratch {
  /// Rows of K and V are prefetched this many tokens ahead, also across the end of a chunk.
  static constexpr std::int32_t kPrefetchTokens = 32;

  AttentionScratch(std::size_t rows, std::size_t head_size)
      : floats(allocate_floats(rows *
                               (head_size + kChunkTokens + 2 * SoftmaxStates::stride(head_size)))),
        scores(floats.get()),
        span{scores + rows * kChunkTokens, head_size},
        total{span.from(static_cast<std::int64_t>(rows))},
        q(total.from(static_cast<std::int64_t>(rows)).data),
        ranges(rows),
        offsets(kChunkTokens + kPrefetchTokens) {}

  AlignedFloats floats;
  float* scores;                      ///< [rows, kChunkTokens], then probabilities
  SoftmaxStates span;                 ///< [rows] of the current span
  SoftmaxStates total;                ///< [rows] of all spans so far
  float* q;                           ///< [rows, D] times scale
  std::vector<KvRange> ranges;        ///< [rows] visible part of the chunk, counted from its start
  std::vector<std::int64_t> offsets;  ///< [tokens] bytes from a plane to the token's row
};

}  // namespace kvhive
