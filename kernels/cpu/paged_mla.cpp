// Latent attention with the chunks, spans and tiles of attention_chunk-inl.hpp and
// attention_tile-inl.hpp. There is one kv head; a tile converts its rows to f32 once for all of its
// query heads. Included once per instruction set by foreach_target.h.

#include <omp.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/mla_row.hpp"
#include "kernels/paged_mla.hpp"

// SSSE3 is too old to be worth its compile time.
#ifndef HWY_DISABLED_TARGETS  // the build may have disabled more
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_mla.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h must be included first.
#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// Highway's scalar target lacks the operations below. A CPU that needs it gets the reference.
bool has_mla_vectors() { return false; }
void attend_latents(const PagedMlaArgs&, const QueryTile&, const TileSpans&, AttentionScratch&,
                    SoftmaxStates) {}
void merge_latents(const PagedMlaArgs&, const QueryTile&, AttentionScratch&, SoftmaxStates) {}

#else

bool has_mla_vectors() { return true; }

constexpr hn::CappedTag<float, 16> kWide;

/// to[0..count-1] = the elements of `from` times `factor`.
template <class Element>
void convert(const std::byte* from, std::size_t count, float factor, float* HWY_RESTRICT to) {
  const auto factors = hn::Set(kWide, factor * Element::kUnit);
  for (std::size_t i = 0; i < count; i += hn::Lanes(kWide))
    hn::Store(hn::Mul(Element::load(kWide, from + i * Element::kBytes), factors), kWide, to + i);
}

void convert_latent(const std::byte* row, MlaRow kind, float* HWY_RESTRICT to) {
  if (kind == MlaRow::bf16) return convert<Bf16Element>(row, kMlaRow, 1.0f, to);
  for (std::size_t first = 0; first < kMlaLatent; first += kMlaScaleGroup) {
    const float scale = load_element(row + kMlaScalesAt, first / kMlaScaleGroup, Dtype::f32);
    convert<E4m3Element>(row + first, kMlaScaleGroup, scale, to + first);
  }
  convert<Bf16Element>(row + kMlaRopeAt, kMlaRope, 1.0f, to + kMlaLatent);
}

/// Converts the rows of the visible tokens to f32, into scratch.tokens.
ChunkRows convert_rows(const PagedMlaArgs& args, const QueryTile& tile, std::int32_t begin,
                       KvRange visible, AttentionScratch& scratch) {
  constexpr std::int64_t kRowBytes = kMlaRow * sizeof(float);
  const PagedLatents& kv = args.kv;
  const BlockId* table = args.block_table + std::int64_t{tile.b} * args.M;
  for (std::int32_t t = visible.begin; t < visible.end; ++t) {
    const std::int32_t position = begin + t;
    const std::byte* row =
        kv.base + latent_offset(kv, table[position / kv.S].value, position % kv.S);
    scratch.offsets[t] = t * kRowBytes;
    convert_latent(row, kv.row,
                   reinterpret_cast<float*>(scratch.tokens.get() + scratch.offsets[t]));
  }
  fill_holes(visible, visible.end, scratch.offsets);
  return {scratch.tokens.get(), scratch.tokens.get(), scratch.offsets.data(), kMlaRow, kMlaLatent};
}

/// Adds one chunk to the states of the tile's rows.
void attend_latent_chunk(const PagedMlaArgs& args, const QueryTile& tile, const TileRows& rows,
                         std::int32_t begin, AttentionScratch& scratch, SoftmaxStates states) {
  const KvRange visible = within_chunk(tile.visible, begin);
  const ChunkRows latents = convert_rows(args, tile, begin, visible, scratch);
  for (std::size_t row = 0; row < rows.count; ++row)
    scratch.ranges[row] = within_chunk({0, rows.position(row) + 1}, begin);
  unite_ranges(rows.count, scratch);
  score_chunk<F32Element>(kWide, latents, visible, rows.count, scratch);
  for (std::size_t row = 0; row < rows.count; ++row)
    if (scratch.ranges[row].begin < scratch.ranges[row].end)
      softmax_row(kWide, scratch.ranges[row], scratch.scores + row * kChunkTokens, states, row);
  accumulate_chunk<F32Element>(kWide, latents, visible, rows.count, scratch, states);
}

Results results_of(const PagedMlaArgs& args) {
  return {args.out, args.lse, nullptr, args.q_dtype, 1.0f};
}

/// Computes one item. Writes the results of an unsplit tile to args.out, the states of a split one
/// to `stored`.
void attend_latents(const PagedMlaArgs& args, const QueryTile& tile, const TileSpans& item,
                    AttentionScratch& scratch, SoftmaxStates stored) {
  const TileRows rows(tile, args.H, 1);
  gather_queries(kWide, args.q, args.q_dtype, rows, kMlaRow, args.scale, scratch.q);
  attend_item(kWide, tile, item, rows.count, scratch, stored,
              [&](std::int32_t begin, SoftmaxStates states) {
                attend_latent_chunk(args, tile, rows, begin, scratch, states);
              });
  if (!tile.is_split()) write_results(kWide, results_of(args), rows, scratch.total);
}

/// Merges the states of a split tile and writes its results.
void merge_latents(const PagedMlaArgs& args, const QueryTile& tile, AttentionScratch& scratch,
                   SoftmaxStates stored) {
  const TileRows rows(tile, args.H, 1);
  merge_tile(kWide, tile, rows.count, scratch, stored);
  write_results(kWide, results_of(args), rows, scratch.total);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(has_mla_vectors);
HWY_EXPORT(attend_latents);
HWY_EXPORT(merge_latents);

/// The arguments that plan_attention reads.
PagedAttentionArgs batch_of(const PagedMlaArgs& args) {
  PagedAttentionArgs batch;
  batch.query_start = args.query_start;
  batch.kv_len = args.kv_len;
  batch.B = args.B;
  batch.H = args.H;
  batch.kv.G = 1;
  return batch;
}

}  // namespace

void paged_mla_cpu(const PagedMlaArgs& args) {
  check_arguments(args);
  if (!HWY_DYNAMIC_DISPATCH(has_mla_vectors)()) return paged_mla_reference(args);
  const AttentionPlan plan = plan_attention(batch_of(args), omp_get_max_threads());
  const ScratchSize size{static_cast<std::size_t>(plan.max_tile_rows), kMlaRow, kMlaLatent,
                         kMlaRow * sizeof(float)};
  run_plan(
      plan, size,
      [&](const QueryTile& tile, const TileSpans& item, AttentionScratch& scratch,
          SoftmaxStates stored) {
        HWY_DYNAMIC_DISPATCH(attend_latents)(args, tile, item, scratch, stored);
      },
      [&](const QueryTile& tile, AttentionScratch& scratch, SoftmaxStates stored) {
        HWY_DYNAMIC_DISPATCH(merge_latents)(args, tile, scratch, stored);
      });
}

}  // namespace kvhive
#endif  // HWY_ONCE
