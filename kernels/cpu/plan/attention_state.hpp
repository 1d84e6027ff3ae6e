#pragma once
// The memory that attention on the CPU works in: running softmax states and the scratch of one
// thread. Private to paged_attention_cpu and paged_mla_cpu.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/plan/attention_plan.hpp"

namespace kvhive {

template <class T>
using AlignedArray = hwy::AlignedFreeUniquePtr<T[]>;

template <class T>
AlignedArray<T> allocate_aligned(std::size_t count) {
  if (count == 0) return nullptr;
  AlignedArray<T> array = hwy::AllocateAligned<T>(count);
  KV_CHECK(array != nullptr, count);
  return array;
}

/// Borrowed view of the softmax states of some query rows. Over the positions seen so far: max is
/// the largest score, sum the sum of exp(score - max), acc the sum of exp(score - max) * v. A row
/// that has seen no position has sum 0; its max and acc mean nothing.
struct SoftmaxStates {
  float* data = nullptr;
  std::size_t value_size = 0;  ///< elements of v

  /// Floats per row: acc, then max and sum, then padding so that each row begins a cache line.
  static std::size_t stride(std::size_t value_size) { return (value_size + 2 + 15) / 16 * 16; }

  float* acc(std::size_t row) const { return data + row * stride(value_size); }
  float& max(std::size_t row) const { return acc(row)[value_size]; }
  float& sum(std::size_t row) const { return acc(row)[value_size + 1]; }
  SoftmaxStates from(std::int64_t row) const {
    return {data + row * static_cast<std::int64_t>(stride(value_size)), value_size};
  }
};

/// A tile's rows in the caller's [T, H, ...] arrays.
struct TileRows {
  TileRows(const QueryTile& tile, std::int32_t H, std::int32_t G)
      : group(static_cast<std::size_t>(H / G)),
        count(tile.rows(H / G)),
        heads(static_cast<std::size_t>(H)),
        first_head(static_cast<std::size_t>(tile.g) * group),
        first(static_cast<std::size_t>(tile.first_query) * heads + first_head),
        first_position(tile.first_position) {}

  std::size_t index(std::size_t row) const { return first + row / group * heads + row % group; }
  std::size_t head(std::size_t row) const { return first_head + row % group; }
  std::int32_t position(std::size_t row) const {
    return first_position + static_cast<std::int32_t>(row / group);
  }

  std::size_t group;  ///< query heads of a kv head
  std::size_t count;
  std::size_t heads;  ///< H
  std::size_t first_head;
  std::size_t first;  ///< of row 0
  std::int32_t first_position;
};

/// Where the rows of a chunk's tokens lie: K of token t at k + offsets[t], V at v + offsets[t].
/// There are kPrefetchTokens more offsets, of tokens of the next chunk.
struct ChunkRows {
  const std::byte* k;
  const std::byte* v;
  const std::int64_t* offsets;
  std::size_t key_size;    ///< elements
  std::size_t value_size;  ///< elements
};

/// Sizes of one thread's scratch.
struct ScratchSize {
  std::size_t rows;         ///< query rows of a tile
  std::size_t key_size;     ///< elements of q and k
  std::size_t value_size;   ///< elements of v
  std::size_t token_bytes;  ///< bytes of a token's K and V if they are copied to scratch, 0 if they
                            ///< are read in place
  bool widens = false;      ///< also keep rows as f32
};

/// The scratch of one thread.
struct AttentionScratch {
  /// Rows of K and V are prefetched this many tokens ahead, also past the end of a chunk.
  static constexpr std::int32_t kPrefetchTokens = 32;

  explicit AttentionScratch(const ScratchSize& size)
      : floats(allocate_aligned<float>(size.rows * (size.key_size + kChunkTokens +
                                                    2 * SoftmaxStates::stride(size.value_size)) +
                                       2 * kChunkTokens)),
        tokens(allocate_aligned<std::byte>(kChunkTokens * size.token_bytes)),
        wide_tokens(allocate_aligned<float>(
            size.widens ? kChunkTokens * (size.key_size + size.value_size) : 0)),
        scores(floats.get()),
        span{scores + size.rows * kChunkTokens, size.value_size},
        total{span.from(static_cast<std::int64_t>(size.rows))},
        k_scales(total.from(static_cast<std::int64_t>(size.rows)).data),
        v_scales(k_scales + kChunkTokens),
        q(v_scales + kChunkTokens),
        ranges(size.rows),
        unions(size.rows),
        offsets(kChunkTokens + kPrefetchTokens),
        wide_offsets(kChunkTokens + kPrefetchTokens) {
    std::fill_n(k_scales, 2 * kChunkTokens, 1.0f);
  }

  AlignedArray<float> floats;
  AlignedArray<std::byte> tokens;   ///< K, then V of a chunk if they are not read in place
  AlignedArray<float> wide_tokens;  ///< the same as f32, if many query rows share it
  float* scores;                    ///< [rows, kChunkTokens], then probabilities
  SoftmaxStates span;               ///< [rows] of the current span
  SoftmaxStates total;              ///< [rows] of all spans so far
  float* k_scales;                  ///< [kChunkTokens], 1 unless each token has a scale
  float* v_scales;                  ///< [kChunkTokens]
  float* q;  ///< [rows, key_size], already multiplied by the scores' common factor
  std::vector<KvRange> ranges;  ///< [rows] tokens that a row sees, counted from the chunk's start
  std::vector<KvRange>
      unions;  ///< the union of the ranges of each group of rows that are scored together
  std::vector<std::int64_t> offsets;       ///< [tokens] bytes from k and v to the token's row
  std::vector<std::int64_t> wide_offsets;  ///< the same for wide_tokens
};

/// Computes a plan with all threads (OpenMP): attend(tile, item, scratch, stored) for every item,
/// then merge(tile, scratch, stored) for every split tile.
template <class Attend, class Merge>
void run_plan(const AttentionPlan& plan, const ScratchSize& size, const Attend& attend,
              const Merge& merge) {
  const AlignedArray<float> memory = allocate_aligned<float>(
      static_cast<std::size_t>(plan.stored_states) * SoftmaxStates::stride(size.value_size));
  const SoftmaxStates stored{memory.get(), size.value_size};

#pragma omp parallel if (plan.items.size() > 1)
  {
    AttentionScratch scratch(size);
#pragma omp for schedule(dynamic, 1) nowait
    for (const TileSpans& item : plan.items) attend(plan.tiles[item.tile], item, scratch, stored);
    if (!plan.split_tiles.empty()) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
      for (const std::size_t tile : plan.split_tiles) merge(plan.tiles[tile], scratch, stored);
    }
  }
}

}  // namespace kvhive
