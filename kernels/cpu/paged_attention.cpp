// Included once per instruction set by foreach_target.h. Start reading at `attend_spans`, at the
// end of the SIMD part. The arithmetic is in attention_chunk-inl.hpp, its order in
// attention_tile-inl.hpp.

#include "kernels/paged_attention.hpp"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/arguments.hpp"
#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/plan/attention_plan.hpp"
#include "kernels/cpu/plan/attention_state.hpp"
#include "kernels/cpu/packed/packed_attention.hpp"
#include "kernels/page_address.hpp"

// SSSE3 is too old to be worth its compile time.
#ifndef HWY_DISABLED_TARGETS  // the build may have disabled more
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cpp"
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
bool has_vectors() { return false; }
void attend_spans(const PagedAttentionArgs&, const QueryTile&, const TileSpans&, AttentionScratch&,
                  SoftmaxStates) {}
void merge_spans(const PagedAttentionArgs&, const QueryTile&, AttentionScratch&, SoftmaxStates) {}

#else

bool has_vectors() { return true; }

/// From this many rows on, a tile converts 8-bit elements once instead of on every use.
constexpr std::size_t kRowsWorthWidening = 12;

/// The scale of all tokens of head g, or 1 if each token has its own.
float head_scale(const KvScales& at, float* scales, std::int32_t g) {
  return scales == nullptr || at.are_per_token() ? 1.0f : *scale_at(at, scales, 0, g, 0);
}

/// Turns a row's scores into probabilities, times the scales of the tokens' values.
template <class D>
void softmax_of(D d, const TileChunk& chunk, std::size_t row, AttentionScratch& scratch,
                SoftmaxStates states) {
  const PagedAttentionArgs& args = chunk.args;
  const bool has_token_scales = args.kv.scales.are_per_token();
  float* scores = scratch.scores + row * kChunkTokens;
  const KvRange range = chunk.range_of(row);
  if (range.begin >= range.end) return;
  const ScoreOptions options{has_token_scales ? scratch.k_scales : nullptr, args.soft_cap};
  finish_scores(d, options, range, scores);
  softmax_row(d, range, scores, states, row);
  if (has_token_scales) scale_tokens(d, scratch.v_scales, range, scores);
}

/// The rows of `tokens` as f32. 8-bit elements are converted once here instead of once per query
/// row. The numbers are the same, so the bits are.
template <class Element, class D>
ChunkRows widen_rows(D d, const ChunkRows& kv, KvRange tokens, AttentionScratch& scratch) {
  float* k = scratch.wide_tokens.get();
  float* v = k + kChunkTokens * kv.key_size;
  const auto widen = [d](const std::byte* from, std::size_t size, float* to) {
    for (std::size_t i = 0; i < size; i += hn::Lanes(d))
      hn::Store(Element::load(d, from + i * Element::kBytes), d, to + i);
  };
  for (std::int32_t t = tokens.begin; t < tokens.end; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * kv.key_size;
    widen(kv.k + kv.offsets[t], kv.key_size, k + at);
    widen(kv.v + kv.offsets[t], kv.value_size, v + at);
    scratch.wide_offsets[t] = static_cast<std::int64_t>(at * sizeof(float));
  }
  fill_holes(tokens, tokens.end, scratch.wide_offsets);
  return {reinterpret_cast<const std::byte*>(k), reinterpret_cast<const std::byte*>(v),
          scratch.wide_offsets.data(), kv.key_size, kv.value_size};
}

/// Adds the chunk to the states of the tile's rows.
template <class Element, class D>
void attend_rows(D d, const TileChunk& chunk, const ChunkRows& kv, AttentionScratch& scratch,
                 SoftmaxStates states) {
  const KvRange visible = chunk.visible();
  find_ranges(chunk, scratch);
  unite_ranges(chunk.rows.count, scratch);
  score_chunk<Element>(d, kv, visible, chunk.rows.count, scratch);
  for (std::size_t row = 0; row < chunk.rows.count; ++row)
    softmax_of(d, chunk, row, scratch, states);
  accumulate_chunk<Element>(d, kv, visible, chunk.rows.count, scratch, states);
}

template <class Element, class D>
void attend_chunk(D d, const TileChunk& chunk, AttentionScratch& scratch, SoftmaxStates states) {
  const ChunkRows kv = find_rows(chunk, scratch);
  if (Element::kBytes == 1 && chunk.rows.count >= kRowsWorthWidening)
    attend_rows<F32Element>(d, chunk, widen_rows<Element>(d, kv, chunk.visible(), scratch), scratch,
                            states);
  else
    attend_rows<Element>(d, chunk, kv, scratch, states);
}

Results results_of(const PagedAttentionArgs& args, const QueryTile& tile, float unit) {
  return {args.out, args.lse, args.sinks, args.q_dtype,
          unit * head_scale(args.kv.scales, args.kv.scales.v, tile.g)};
}

/// Attention with vectors of one width over elements of one type.
template <class Element, class D>
struct Attention {
  static void attend(const PagedAttentionArgs& args, const QueryTile& tile, const TileSpans& item,
                     AttentionScratch& scratch, SoftmaxStates stored) {
    const D d;
    const TileRows rows(tile, args.H, args.kv.G);
    gather_queries(
        d, args.q, args.q_dtype, rows, static_cast<std::size_t>(args.kv.D),
        args.scale * Element::kUnit * head_scale(args.kv.scales, args.kv.scales.k, tile.g),
        scratch.q);
    attend_item(d, tile, item, rows.count, scratch, stored,
                [&](std::int32_t begin, SoftmaxStates states) {
                  attend_chunk<Element>(d, {args, tile, rows, begin}, scratch, states);
                });
    if (!tile.is_split())
      write_results(d, results_of(args, tile, Element::kUnit), rows, scratch.total);
  }

  static void merge(const PagedAttentionArgs& args, const QueryTile& tile,
                    AttentionScratch& scratch, SoftmaxStates stored) {
    const D d;
    const TileRows rows(tile, args.H, args.kv.G);
    merge_tile(d, tile, rows.count, scratch, stored);
    write_results(d, results_of(args, tile, Element::kUnit), rows, scratch.total);
  }
};

/// Calls work(Attention) for the cache's element type, with the widest vectors that D is a multiple
/// of.
template <class Element, class Work>
void with_width(std::int32_t head_size, const Work& work) {
  using Wide = hn::CappedTag<float, 16>;
  using Narrow = hn::CappedTag<float, 8>;
  if (static_cast<std::size_t>(head_size) % hn::Lanes(Wide()) == 0)
    work(Attention<Element, Wide>());
  else
    work(Attention<Element, Narrow>());
}

template <class Work>
void with_elements(const PagedKv& kv, const Work& work) {
  switch (kv.dtype) {
    case Dtype::f32: return with_width<F32Element>(kv.D, work);
    case Dtype::bf16: return with_width<Bf16Element>(kv.D, work);
    case Dtype::f16: return with_width<F16Element>(kv.D, work);
    case Dtype::e4m3: return with_width<E4m3Element>(kv.D, work);
    case Dtype::e5m2: return with_width<E5m2Element>(kv.D, work);
    case Dtype::int8: return with_width<Int8Element>(kv.D, work);
  }
}

/// Computes one item. Writes the results of an unsplit tile to args.out, the states of a split one
/// to `stored`.
void attend_spans(const PagedAttentionArgs& args, const QueryTile& tile, const TileSpans& item,
                  AttentionScratch& scratch, SoftmaxStates stored) {
  with_elements(args.kv,
                [&](auto attention) { attention.attend(args, tile, item, scratch, stored); });
}

/// Merges the states of a split tile and writes its results.
void merge_spans(const PagedAttentionArgs& args, const QueryTile& tile, AttentionScratch& scratch,
                 SoftmaxStates stored) {
  with_elements(args.kv, [&](auto attention) { attention.merge(args, tile, scratch, stored); });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(has_vectors);
HWY_EXPORT(attend_spans);
HWY_EXPORT(merge_spans);

}  // namespace

void paged_attention_cpu(const PagedAttentionArgs& args) {
  check_arguments(args);
  if (packed_attention_takes(args)) return packed_attention(args);
  if (!HWY_DYNAMIC_DISPATCH(has_vectors)()) return paged_attention_reference(args);
  const PagedKv& kv = args.kv;
  const AttentionPlan plan = plan_attention(args, omp_get_max_threads());
  const auto head_size = static_cast<std::size_t>(kv.D);
  const bool in_place = kv.layout == PageLayout::rows;
  const ScratchSize size{static_cast<std::size_t>(plan.max_tile_rows), head_size, head_size,
                         in_place ? 0 : 2 * head_size * bytes_of(kv.dtype),
                         bytes_of(kv.dtype) == 1};
  run_plan(
      plan, size,
      [&](const QueryTile& tile, const TileSpans& item, AttentionScratch& scratch,
          SoftmaxStates stored) {
        HWY_DYNAMIC_DISPATCH(attend_spans)(args, tile, item, scratch, stored);
      },
      [&](const QueryTile& tile, AttentionScratch& scratch, SoftmaxStates stored) {
        HWY_DYNAMIC_DISPATCH(merge_spans)(args, tile, scratch, stored);
      });
}

}  // namespace kvhive
#endif  // HWY_ONCE
