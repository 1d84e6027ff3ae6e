#pragma once
// Finds the KV that a tile sees in one chunk: which tokens, and where their rows lie. Private to
// paged_attention_cpu and paged_mla_cpu; no SIMD.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {

/// A chunk of the KV that a tile sees. All ranges are counted from its first token.
struct TileChunk {
  const PagedAttentionArgs& args;
  const QueryTile& tile;
  const TileRows& rows;
  std::int32_t begin;  ///< position of its first token

  KvRange visible() const { return within_chunk(tile.visible, begin); }

  /// The tokens that a row sees.
  KvRange range_of(std::size_t row) const {
    return within_chunk(visible_range(rows.position(row), args.window, args.chunk), begin);
  }
};

/// Writes what each row sees of the chunk to scratch.ranges.
void find_ranges(const TileChunk& chunk, AttentionScratch& scratch);

/// Gives the tokens of the chunk that no row sees the offset of one that some row sees: the SIMD
/// loops score them, too, and mask them afterwards, so their offsets must be readable.
///
/// \param tokens     what some row sees, not empty
/// \param known_end  offsets up to here are known: tokens.end or, for prefetching, beyond it
void fill_holes(KvRange tokens, std::int32_t known_end, std::vector<std::int64_t>& offsets);

/// Finds the rows of the tokens that some row sees, and their scales. Entries of the block table
/// and scales of other blocks are not read; offsets past the end of the chunk are for prefetching
/// only. Rows of pages that do not keep a token's elements side by side are copied to
/// scratch.tokens.
ChunkRows find_rows(const TileChunk& chunk, AttentionScratch& scratch);

}  // namespace kvhive
