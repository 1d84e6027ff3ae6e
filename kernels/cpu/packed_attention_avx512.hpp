#pragma once
// What of packed_attention is compiled for AVX-512 BF16. Only raw pointers and internal linkage on
// the other side: an inline function emitted there could be the copy that other CPUs get.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/packed_codes.hpp"
#include "kernels/cpu/packed_plan.hpp"

namespace kvhive {

/// One thread's memory, 64-byte aligned parts of one buffer.
struct PackedScratch {
  std::uint16_t* q = nullptr;        ///< [rows, D] bf16
  float* scores = nullptr;           ///< [rows, kChunkTokens]
  std::uint16_t* weights = nullptr;  ///< [rows, kChunkTokens] bf16
  std::byte* wide = nullptr;         ///< [4 token groups, D] 8-bit elements as bf16
  KvRange* ranges = nullptr;         ///< [head rows] visible part of the chunk
  float* span = nullptr;             ///< [rows, state] of the current span
  float* total = nullptr;            ///< [rows, state] of all spans so far
};

/// Floats of one row's state: acc [D], the largest score so far in units of log2, the sum of the
/// weights relative to it, and padding to whole lines.
static constexpr std::int64_t packed_state_floats(std::int64_t head_size) { return head_size + 16; }

/// Spans first_span..end_span-1 of a tile. An unsplit tile's results go to args.out, a split one's
/// states to `stored`.
///
/// \param codes  of args.kv.dtype; not looked at if that is bf16
void attend_packed_spans(const PagedAttentionArgs& args, const Bf16OfCodes& codes,
                         const PackedTile& tile, std::int32_t first_span, std::int32_t end_span,
                         const PackedScratch& scratch, float* stored);

/// Brings the states of a split tile together.
void merge_packed_spans(const PagedAttentionArgs& args, const PackedTile& tile,
                        const PackedScratch& scratch, float* stored);

}  // namespace kvhive
