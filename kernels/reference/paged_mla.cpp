#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/element.hpp"
#include "kernels/mla_row.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {
namespace {

using Rows = std::vector<std::vector<double>>;  ///< [kv_len, 576]

Rows read_rows(const PagedMlaArgs& args, std::int32_t b) {
  Rows rows(args.kv_len[b]);
  for (std::int32_t t = 0; t < args.kv_len[b]; ++t) {
    const std::int64_t block = args.block_table[std::int64_t{b} * args.M + t / args.kv.S].value;
    const std::byte* row = args.kv.base + latent_offset(args.kv, block, t % args.kv.S);
    for (std::int32_t d = 0; d < kMlaRow; ++d) rows[t].push_back(load_latent(row, args.kv.row, d));
  }
  return rows;
}

/// Computes row `row` of out and lse, which attends to the first `visible` positions.
void attend(const PagedMlaArgs& args, const Rows& rows, std::size_t row, std::int32_t visible) {
  std::vector<double> q, scores(visible, 0.0);
  for (std::int32_t d = 0; d < kMlaRow; ++d)
    q.push_back(load_element(args.q, row * kMlaRow + d, args.q_dtype));
  for (std::int32_t t = 0; t < visible; ++t) {
    for (std::int32_t d = 0; d < kMlaRow; ++d) scores[t] += q[d] * rows[t][d];
    scores[t] *= args.scale;
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - max);

  std::vector<double> out(kMlaLatent, 0.0);
  for (std::int32_t t = 0; t < visible; ++t) {
    const double weight = std::exp(scores[t] - max) / sum;
    for (std::int32_t d = 0; d < kMlaLatent; ++d) out[d] += weight * rows[t][d];
  }
  for (std::int32_t d = 0; d < kMlaLatent; ++d)
    store_element(args.out, row * kMlaLatent + d, static_cast<float>(out[d]), args.q_dtype);
  if (args.lse) args.lse[row] = static_cast<float>(max + std::log(sum));
}

}  // namespace

void paged_mla_reference(const PagedMlaArgs& args) {
  check_arguments(args);
  for (std::int32_t b = 0; b < args.B; ++b) {
    const std::int32_t begin = args.query_start[b], end = args.query_start[b + 1];
    if (begin == end) continue;
    const Rows rows = read_rows(args, b);
    for (std::int32_t token = begin; token < end; ++token)
      for (std::int32_t h = 0; h < args.H; ++h)
        attend(args, rows, static_cast<std::size_t>(token) * args.H + h,
               args.kv_len[b] - end + token + 1);
  }
}

void mla_write_reference(const MlaWriteArgs& args) {
  check_arguments(args);
  for (std::int32_t t = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id < 0) continue;
    std::byte* row =
        args.kv.base + latent_offset(args.kv, slot_id / args.kv.S, slot_id % args.kv.S);
    const std::size_t latent = static_cast<std::size_t>(t) * kMlaLatent;
    const std::size_t rope = static_cast<std::size_t>(t) * kMlaRope;
    const bool is_fp8 = args.kv.row == MlaRow::fp8;
    std::byte* rope_row = row + (is_fp8 ? kMlaRopeAt : 2 * kMlaLatent);
    for (std::int32_t d = 0; d < kMlaRope; ++d)
      store_element(rope_row, d, load_element(args.rope, rope + d, args.in_dtype), Dtype::bf16);
    if (!is_fp8) {
      for (std::int32_t d = 0; d < kMlaLatent; ++d)
        store_element(row, d, load_element(args.latent, latent + d, args.in_dtype), Dtype::bf16);
      continue;
    }
    for (std::int32_t first = 0; first < kMlaLatent; first += kMlaScaleGroup) {
      float amax = 0;
      for (std::int32_t d = first; d < first + kMlaScaleGroup; ++d)
        amax = std::fmax(amax, std::fabs(load_element(args.latent, latent + d, args.in_dtype)));
      const float scale = latent_scale(amax);
      store_element(row + kMlaScalesAt, first / kMlaScaleGroup, scale, Dtype::f32);
      for (std::int32_t d = first; d < first + kMlaScaleGroup; ++d)
        store_element(row, d, load_element(args.latent, latent + d, args.in_dtype) / scale,
                      Dtype::e4m3);
    }
  }
}

}  // namespace kvhive
