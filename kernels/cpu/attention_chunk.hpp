#pragma once
// Which KV a tile sees in one chunk, and where it lies. Private to paged_attention_cpu and
// paged_mla_cpu; plain C++.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_plan.hpp"
#include "kernels/cpu/attention_state.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {

/// A chunk of the KV that a tile sees. All ranges are counted from its first token.
struct TileChunk {
  const PagedAttentionArgs& args;
  const QueryTile& tile;
  const TileRows& rows;
  std::int32_t begin;  ///< position of its first token

  KvRange visible() const { return within_chunk(tile.visible, begin); }

  /// The tokens that a row sees if it does not skip blocks.
  KvRange range_of(std::size_t row) const {
    return within_chunk(visible_range(rows.position(row), args.window, args.chunk), begin);
  }

  /// Whether the row attends to the sparse block that `piece` is a part of.
  bool attends(std::size_t row, KvRange piece) const {
    const std::int32_t block = args.sparsity.block;
    return block == 0 ||
           attends_block(args.sparsity, static_cast<std::int32_t>(rows.head(row)), tile.g,
                         rows.position(row) / block, (begin + piece.begin) / block);
  }
};

/// The parts of the chunk that any row attends to, in order; each inside one sparse block.
void find_pieces(const TileChunk& chunk, std::vector<KvRange>& pieces);

/// What the rows see of `piece`: scratch.ranges.
void find_ranges(const TileChunk& chunk, KvRange piece, AttentionScratch& scratch);

/// Gives tokens outside `pieces` the offset of one inside: they are scored along, and then masked.
/// Offsets are known up to known_end, the end of the last piece or, for prefetching, beyond.
void fill_holes(const std::vector<KvRange>& pieces, std::int32_t known_end,
                std::vector<std::int64_t>& offsets);

/// Where the rows of the tokens of `pieces` (not empty) are, and their scales; other tokens get the
/// place of one of these. Block table entries and scales of other blocks are not read, and the
/// tokens that come after the chunk are for prefetching only. Pages that do not keep rows are
/// copied.
ChunkRows find_rows(const TileChunk& chunk, const std::vector<KvRange>& pieces,
                    AttentionScratch& scratch);

}  // namespace kvhive
