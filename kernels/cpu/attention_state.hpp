#pragma once
// The memory that attention on the CPU works in: running softmax states and one thread's scratch.
// Private to paged_attention_cpu and paged_mla_cpu.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/attention_plan.hpp"

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

/// Borrowed view of the states of some query rows: over the positions seen so far, the largest
/// score, the sum of exp(score - max), and acc = sum of exp(score - max) * v. A row that has seen
/// nothing has sum 0 and says nothing in max and acc.
struct SoftmaxStates {
  float* data = nullptr;
  std::size_t value_size = 0;  ///< elements of v

  /// Floats per row: acc, then max and sum, then padding that keeps rows on cache lines.
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
  std::size_t first;  ///< index of row 0
  std::int32_t first_position;
};

/// Rows of K and V of a chunk's tokens. Token t's are at k + offsets[t] and v + offsets[t]; offsets
/// go on for kPrefetchTokens into the next chunk.
struct ChunkRows {
  const std::byte* k;
  const std::byte* v;
  const std::int64_t* offsets;
  std::size_t key_size;    ///< elements
  std::size_t value_size;  ///< elements
};

/// What one thread needs room for.
struct ScratchSize {
  std::size_t rows;         ///< query rows of a tile
  std::size_t key_size;     ///< elements of q and k
  std::size_t value_size;   ///< elements of v
  std::size_t token_bytes;  ///< of a token's rows where they are not read in place, else 0
  bool widens = false;      ///< rows are to be kept as f32, too
};

/// One thread's memory.
struct AttentionScratch {
  /// Rows of K and V are prefetched this many tokens ahead, also across the end of a chunk.
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
  AlignedArray<std::byte> tokens;     ///< a chunk's rows where they are not read in place
  AlignedArray<float> wide_tokens;    ///< a chunk's K, then V, where many rows share it
  float* scores;                      ///< [rows, kChunkTokens], then probabilities
  SoftmaxStates span;                 ///< [rows] of the current span
  SoftmaxStates total;                ///< [rows] of all spans so far
  float* k_scales;                    ///< [kChunkTokens] where tokens have scales of their own
  float* v_scales;                    ///< [kChunkTokens]
  float* q;                           ///< [rows, key_size] times what all scores are times
  std::vector<KvRange> ranges;        ///< [rows] tokens a row sees, counted from the chunk's start
  std::vector<KvRange> unions;        ///< of the ranges of the rows that are scored together
  std::vector<std::int64_t> offsets;  ///< [tokens] bytes from a plane to the token's row
  std::vector<std::int64_t> wide_offsets;  ///< the same in wide_tokens
};

/// Computes a plan with all threads (OpenMP):
/// attend(tile, item, scratch, stored) for every item, then merge(tile, scratch, stored) for every
/// split tile.
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
