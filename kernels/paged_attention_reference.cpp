#include "kernels/paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "config/check.hpp"

namespace kvhive {
namespace {

double element(const std::byte* address, Dtype dtype) {
  if (dtype == Dtype::f32) {
    float value;
    std::memcpy(&value, address, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, address, sizeof bits);
  return dtype == Dtype::bf16 ? float_of_bf16(bits) : float_of_f16(bits);
}

/// Row of D elements that sequence b stores for `position` in `plane` (K or V).
const std::byte* row_of(const PagedAttentionArgs& args, const std::byte* plane, std::int32_t b,
                        std::int32_t g, std::int32_t position) {
  const PagedKv& kv = args.kv;
  const std::int64_t block = args.block_table[std::int64_t{b} * args.M + position / kv.S];
  return plane + block * kv.block_stride + g * kv.head_stride + position % kv.S * kv.token_stride;
}

double dot(const float* q, const std::byte* k, const PagedKv& kv) {
  double sum = 0;
  for (std::int32_t d = 0; d < kv.D; ++d)
    sum += q[d] * element(k + d * bytes_of(kv.dtype), kv.dtype);
  return sum;
}

/// Turns scores into probabilities in place.
void softmax(std::vector<double>& scores) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (double& score : scores) score /= sum;
}

/// One query head of one token that sits at `position`.
void attend(const PagedAttentionArgs& args, std::int32_t b, std::int32_t g, std::int32_t position,
            const float* q, float* out) {
  const PagedKv& kv = args.kv;
  const std::int32_t first = args.window > 0 ? std::max(0, position + 1 - args.window) : 0;
  std::vector<double> weights;
  for (std::int32_t p = first; p <= position; ++p)
    weights.push_back(double{args.scale} * dot(q, row_of(args, kv.k, b, g, p), kv));
  softmax(weights);

  std::vector<double> sum(static_cast<std::size_t>(kv.D), 0.0);
  for (std::int32_t p = first; p <= position; ++p) {
    const std::byte* v = row_of(args, kv.v, b, g, p);
    for (std::int32_t d = 0; d < kv.D; ++d)
      sum[d] += weights[p - first] * element(v + d * bytes_of(kv.dtype), kv.dtype);
  }
  std::copy(sum.begin(), sum.end(), out);
}

}  // namespace

void paged_attention_reference(const PagedAttentionArgs& args) {
  KV_CHECK(args.q_dtype == Dtype::f32 && bytes_of(args.kv.dtype) > 1 &&
               args.kv.layout == PageLayout::rows,
           int(args.q_dtype), int(args.kv.dtype), int(args.kv.layout));
  KV_CHECK(args.lse == nullptr && args.alibi_slopes == nullptr && args.sinks == nullptr &&
               args.chunk == 0 && args.sparsity.block == 0 && args.soft_cap == 0,
           args.chunk, args.sparsity.block, args.soft_cap);
  const PagedKv& kv = args.kv;
  KV_CHECK(kv.G > 0 && args.H % kv.G == 0, args.H, kv.G);
  for (std::int32_t b = 0; b < args.B; ++b) {
    const std::int32_t q_len = args.query_start[b + 1] - args.query_start[b];
    KV_CHECK(q_len >= 0 && q_len <= args.kv_len[b], b, q_len, args.kv_len[b]);
    for (std::int32_t i = 0; i < q_len; ++i)
      for (std::int32_t h = 0; h < args.H; ++h) {
        const std::int64_t row = std::int64_t{args.query_start[b] + i} * args.H + h;
        attend(args, b, h / (args.H / kv.G), args.kv_len[b] - q_len + i,
               static_cast<const float*>(args.q) + row * kv.D,
               static_cast<float*>(args.out) + row * kv.D);
      }
  }
}

}  // namespace kvhive
