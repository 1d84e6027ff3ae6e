#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/element.hpp"
#include "kernels/page_address.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

using Row = std::vector<double>;

/// K and V of one sequence and one kv head. A position is read when it is first asked for.
class HeadRows {
 public:
  HeadRows(const PagedAttentionArgs& args, std::int32_t b, std::int32_t g)
      : kv_(args.kv),
        table_(args.block_table + std::int64_t{b} * args.M),
        g_(g),
        keys_(args.kv_len[b]),
        values_(args.kv_len[b]) {}

  const Row& key(std::int32_t t) { return read(keys_[t], t, kv_.k, key_offset, kv_.scales.k); }
  const Row& value(std::int32_t t) {
    return read(values_[t], t, kv_.v, value_offset, kv_.scales.v);
  }

 private:
  using Offset = std::int64_t (*)(const PagedKv&, std::int64_t, std::int64_t);

  const Row& read(Row& row, std::int32_t t, const std::byte* plane, Offset offset, float* scales) {
    if (!row.empty()) return row;
    const std::int64_t block = table_[t / kv_.S].value;
    const std::int32_t slot = t % kv_.S;
    const std::byte* page = plane + page_offset(kv_, block, g_);
    const double scale = scales ? *scale_at(kv_.scales, scales, block, g_, slot) : 1.0;
    for (std::int32_t d = 0; d < kv_.D; ++d)
      row.push_back(load_element(page + offset(kv_, slot, d), kv_.dtype) * scale);
    return row;
  }

  const PagedKv& kv_;
  const BlockId* table_;
  std::int32_t g_;
  std::vector<Row> keys_;
  std::vector<Row> values_;
};

/// Whether the query at position p attends to position t <= p.
bool attends(const PagedAttentionArgs& args, std::int32_t p, std::int32_t t) {
  if (args.window > 0 && t <= p - args.window) return false;
  return args.chunk == 0 || t / args.chunk == p / args.chunk;
}

/// Computes head h of query token `token` of the batch, which has position p.
void attend(const PagedAttentionArgs& args, HeadRows& rows, std::int32_t h, std::int32_t token,
            std::int32_t p) {
  const std::int64_t row = std::int64_t{token} * args.H + h;
  const std::size_t first = static_cast<std::size_t>(row) * args.kv.D;
  Row q;
  for (std::int32_t d = 0; d < args.kv.D; ++d)
    q.push_back(load_element(args.q, first + d, args.q_dtype));
  std::vector<std::int32_t> positions;
  std::vector<double> scores;
  for (std::int32_t t = 0; t <= p; ++t) {
    if (!attends(args, p, t)) continue;
    double score = 0;
    const Row& key = rows.key(t);
    for (std::int32_t d = 0; d < args.kv.D; ++d) score += q[d] * key[d];
    score *= args.scale;
    if (args.soft_cap > 0) score = args.soft_cap * std::tanh(score / args.soft_cap);
    positions.push_back(t);
    scores.push_back(score);
  }

  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const double sink = args.sinks ? args.sinks[h] : kNothing;
  double max = sink;
  for (const double score : scores) max = std::max(max, score);
  double divisor = sink == kNothing ? 0 : std::exp(sink - max);
  for (const double score : scores) divisor += std::exp(score - max);

  Row out(static_cast<std::size_t>(args.kv.D), 0.0);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - max) / divisor;
    const Row& value = rows.value(positions[i]);
    for (std::int32_t d = 0; d < args.kv.D; ++d) out[d] += weight * value[d];
  }
  for (std::int32_t d = 0; d < args.kv.D; ++d)
    store_element(args.out, first + d, static_cast<float>(out[d]), args.q_dtype);
  if (args.lse) args.lse[row] = static_cast<float>(divisor > 0 ? max + std::log(divisor) : max);
}

}  // namespace

void paged_attention_reference(const PagedAttentionArgs& args) {
  check_arguments(args);
  const std::int32_t group = args.H / args.kv.G;
  for (std::int32_t b = 0; b < args.B; ++b)
    for (std::int32_t g = 0; g < args.kv.G; ++g) {
      HeadRows rows(args, b, g);
      const std::int32_t end = args.query_start[b + 1];
      for (std::int32_t token = args.query_start[b]; token < end; ++token)
        for (std::int32_t h = g * group; h < (g + 1) * group; ++h)
          attend(args, rows, h, token, args.kv_len[b] - end + token);
    }
}

}  // namespace kvhive
