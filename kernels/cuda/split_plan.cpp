#include "kernels/cuda/split_plan.hpp"

#include <algorithm>

#include "config/check.hpp"

namespace kvhive {
namespace {

/// What a query at `position` may see begins here.
std::int32_t first_visible(std::int32_t position, std::int32_t window, std::int32_t chunk) {
  const std::int32_t by_window = window > 0 ? position + 1 - window : 0;
  const std::int32_t by_chunk = chunk > 0 ? position / chunk * chunk : 0;
  return std::max({0, by_window, by_chunk});
}

void plan_query(SplitPlan& plan, AttentionSplit split, std::int32_t begin) {
  const std::int32_t size = split_tokens_at(split.position);
  const std::int32_t end = split.position + 1;
  const std::int32_t count = (end + size - 1) / size - begin / size;
  if (count > 1) plan.merged.push_back({split.query, plan.states, count});
  for (std::int32_t i = begin / size; i * size < end; ++i) {
    split.begin = std::max(begin, i * size);
    split.end = std::min(end, (i + 1) * size);
    split.state = count > 1 ? plan.states++ : -1;
    plan.splits.push_back(split);
  }
}

}  // namespace

std::int32_t split_tokens_at(std::int32_t position) {
  std::int32_t size = kMinSplitTokens;
  while (size < kMaxSplitTokens && position >= 64 * size) size *= 2;
  return size;
}

SplitPlan plan_splits(std::span<const std::int32_t> query_start,
                      std::span<const std::int32_t> kv_len, std::int32_t window,
                      std::int32_t chunk) {
  KV_CHECK(query_start.size() == kv_len.size() + 1, query_start.size(), kv_len.size());
  KV_CHECK(window >= 0 && chunk >= 0, window, chunk);
  SplitPlan plan;
  for (std::size_t b = 0; b < kv_len.size(); ++b) {
    const std::int32_t q_len = query_start[b + 1] - query_start[b];
    KV_CHECK(q_len >= 0 && q_len <= kv_len[b], b, q_len, kv_len[b]);
    for (std::int32_t i = 0; i < q_len; ++i) {
      const std::int32_t position = kv_len[b] - q_len + i;
      plan_query(
          plan,
          {.b = static_cast<std::int32_t>(b), .query = query_start[b] + i, .position = position},
          first_visible(position, window, chunk));
    }
  }
  return plan;
}

}  // namespace kvhive
