#include "kernels/cpu/attention_chunk.hpp"

#include <algorithm>

#include "hwy/cache_control.h"
#include "kernels/page_address.hpp"
#include "kernels/cpu/page_rows.hpp"

namespace kvhive {
namespace {

bool any_attends(const TileChunk& chunk, KvRange piece) {
  for (std::size_t row = 0; row < chunk.rows.count; ++row)
    if (chunk.attends(row, piece)) return true;
  return false;
}

/// The slots of one block that hold some successive tokens of a chunk.
struct BlockSlots {
  std::int64_t block;  ///< physical
  std::int32_t token;  ///< the first, counted from the chunk's start
  std::int32_t slot;   ///< of that token
  std::int32_t count;
};

/// Calls work(BlockSlots) for the blocks with tokens of `range`.
template <class Work>
void for_blocks(const TileChunk& chunk, KvRange range, const Work& work) {
  const std::int32_t S = chunk.args.kv.S;
  const BlockId* table = chunk.args.block_table + std::int64_t{chunk.tile.b} * chunk.args.M;
  std::int32_t block = (chunk.begin + range.begin) / S;
  std::int32_t slot = (chunk.begin + range.begin) % S;
  for (std::int32_t t = range.begin; t < range.end; ++block, slot = 0) {
    const std::int32_t count = std::min(S - slot, range.end - t);
    work(BlockSlots{table[block].value, t, slot, count});
    t += count;
  }
}

/// Rows read where they are.
void find_in_place(const TileChunk& chunk, KvRange range, std::vector<std::int64_t>& offsets) {
  const PagedKv& kv = chunk.args.kv;
  for_blocks(chunk, range, [&](const BlockSlots& slots) {
    const std::int64_t page = page_offset(kv, slots.block, chunk.tile.g);
    // The first touch of a page is the slow one (address translation, opening the DRAM row): do it
    // for the whole chunk now. Worth a fifth to a third of decode's speed; a chunk earlier is no
    // good.
    hwy::Prefetch(kv.k + page);
    hwy::Prefetch(kv.v + page);
    const std::int64_t token_stride = kv.token_stride, first = page + slots.slot * token_stride;
    std::int64_t* to = offsets.data() + slots.token;
    for (std::int32_t i = 0; i < slots.count; ++i) to[i] = first + i * token_stride;
  });
}

/// Copies rows to scratch.tokens: K of all the chunk's tokens, then V.
void copy_rows(const TileChunk& chunk, KvRange range, AttentionScratch& scratch) {
  const PagedKv& kv = chunk.args.kv;
  const std::int64_t row_bytes = kv.D * static_cast<std::int64_t>(bytes_of(kv.dtype));
  for_blocks(chunk, range, [&](const BlockSlots& slots) {
    const std::int64_t page = page_offset(kv, slots.block, chunk.tile.g);
    for (std::int32_t i = 0; i < slots.count; ++i) {
      const std::int64_t at = (slots.token + i) * row_bytes;
      read_key_row(kv, kv.k + page, slots.slot + i, scratch.tokens.get() + at);
      read_value_row(kv, kv.v + page, slots.slot + i,
                     scratch.tokens.get() + kChunkTokens * row_bytes + at);
      scratch.offsets[slots.token + i] = at;
    }
  });
}

void copy_scales(const TileChunk& chunk, KvRange range, AttentionScratch& scratch) {
  const KvScales& scales = chunk.args.kv.scales;
  const std::int32_t g = chunk.tile.g;
  for_blocks(chunk, range, [&](const BlockSlots& slots) {
    for (std::int32_t i = 0; i < slots.count; ++i) {
      const std::int32_t slot = slots.slot + i;
      scratch.k_scales[slots.token + i] = *scale_at(scales, scales.k, slots.block, g, slot);
      scratch.v_scales[slots.token + i] = *scale_at(scales, scales.v, slots.block, g, slot);
    }
  });
}

}  // namespace

void find_pieces(const TileChunk& chunk, std::vector<KvRange>& pieces) {
  pieces.clear();
  const KvRange visible = chunk.visible();
  const std::int32_t block = chunk.args.sparsity.block;
  if (block == 0) {
    pieces.push_back(visible);
    return;
  }
  for (std::int32_t t = visible.begin; t < visible.end;) {
    const std::int32_t rest = block - (chunk.begin + t) % block;
    const KvRange piece{t, std::min(visible.end - t, rest) + t};
    if (any_attends(chunk, piece)) pieces.push_back(piece);
    t = piece.end;
  }
}

void find_ranges(const TileChunk& chunk, KvRange piece, AttentionScratch& scratch) {
  for (std::size_t row = 0; row < chunk.rows.count; ++row)
    scratch.ranges[row] = chunk.attends(row, piece) ? intersection(chunk.range_of(row), piece)
                                                    : KvRange{piece.begin, piece.begin};
}

void fill_holes(const std::vector<KvRange>& pieces, std::int32_t known_end,
                std::vector<std::int64_t>& offsets) {
  std::int32_t done = 0;
  for (const KvRange piece : pieces) {
    std::fill(offsets.begin() + done, offsets.begin() + piece.begin, offsets[piece.begin]);
    done = piece.end;
  }
  std::fill(offsets.begin() + known_end, offsets.end(), offsets[known_end - 1]);
}

ChunkRows find_rows(const TileChunk& chunk, const std::vector<KvRange>& pieces,
                    AttentionScratch& scratch) {
  const PagedKv& kv = chunk.args.kv;
  std::vector<std::int64_t>& offsets = scratch.offsets;
  const bool in_place = kv.layout == PageLayout::rows;
  std::int32_t known_end = pieces.back().end;
  for (KvRange piece : pieces) {
    // What follows the chunk follows its last piece.
    if (in_place && piece.end == kChunkTokens && chunk.args.sparsity.block == 0)
      known_end = piece.end = std::min(kChunkTokens + AttentionScratch::kPrefetchTokens,
                                       chunk.tile.visible.end - chunk.begin);
    if (in_place)
      find_in_place(chunk, piece, offsets);
    else
      copy_rows(chunk, piece, scratch);
    if (kv.scales.are_per_token())
      copy_scales(chunk, {piece.begin, std::min(piece.end, kChunkTokens)}, scratch);
  }
  fill_holes(pieces, known_end, offsets);

  const std::int64_t row_bytes = kv.D * static_cast<std::int64_t>(bytes_of(kv.dtype));
  const std::byte* k = in_place ? kv.k : scratch.tokens.get();
  const std::byte* v = in_place ? kv.v : scratch.tokens.get() + kChunkTokens * row_bytes;
  return {k, v, offsets.data(), static_cast<std::size_t>(kv.D), static_cast<std::size_t>(kv.D)};
}

}  // namespace kvhive
