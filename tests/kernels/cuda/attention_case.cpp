#include "tests/kernels/cuda/attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

#include "base/check.hpp"
#include "tests/kernels/cuda/stored_element.hpp"

namespace kvhive::testing_support {
namespace {

constexpr BlockId kFarOutside{0x7ffffff0u};
constexpr double kNothing = -std::numeric_limits<double>::infinity();

bool is_visible(const AttentionCase& c, std::int32_t position, std::int32_t t) {
  if (c.window > 0 && t <= position - c.window) return false;
  if (c.chunk > 0 && t / c.chunk != position / c.chunk) return false;
  return true;
}

}  // namespace

std::string AttentionCase::describe() const {
  std::ostringstream text;
  text << "q " << to_string(q_dtype) << ", kv " << to_string(kv_dtype) << ", D " << D << ", S " << S
       << ", G " << G << " x " << heads_per_kv << ", window " << window << ", chunk " << chunk
       << ", cap " << soft_cap << ", sinks " << has_sinks << ", scales " << int(scales)
       << ", sequences";
  for (const Sequence& s : sequences) {
    text << ' ' << s.kv_len << ':' << s.q_len;
    if (s.shared > 0) text << " (" << s.shared << " of " << s.shared_with << ')';
  }
  return text.str();
}

AttentionBatch::AttentionBatch(const AttentionCase& c) : case_(c) {
  std::mt19937 random(c.seed);
  for (std::int32_t h = 0; h < H(); ++h) {
    sinks_.push_back(static_cast<float>(random() % 100) / 50.0f - 1.0f);
  }
  for (int i = 0; i < 2 * c.G; ++i) scales_.push_back(0.25f + 0.25f * static_cast<float>(i % 3));
  for (std::size_t b = 0; b < c.sequences.size(); ++b) {
    tokens_.emplace_back();
    make_tokens(c.seed + static_cast<std::uint32_t>(b), c.sequences[b].kv_len, &tokens_.back());
    share_tokens(c.sequences[b], &tokens_.back());
    query_start_.push_back(query_start_.back() + c.sequences[b].q_len);
    kv_len_.push_back(c.sequences[b].kv_len);
    const std::size_t row = static_cast<std::size_t>(H() * c.D);
    const std::vector<float>& q = tokens_.back().q;
    for (std::size_t i = q.size() - static_cast<std::size_t>(c.sequences[b].q_len) * row;
         i < q.size(); ++i) {
      q_.resize(q_.size() + bytes_of(c.q_dtype));
      store_element(&q_[q_.size() - bytes_of(c.q_dtype)], c.q_dtype, q[i]);
    }
  }
  store_all();
}

void AttentionBatch::make_tokens(std::uint32_t seed, std::int32_t count, Tokens* tokens) const {
  std::mt19937 random(seed);
  const auto number = [&] { return static_cast<float>(random() % 65536) / 16384.0f - 2.0f; };
  const AttentionCase& c = case_;
  const auto quantised = [&](float scale) {  // as the cache holds it
    std::byte code[4];
    store_element(code, c.kv_dtype, number() / scale);
    return load_element(code, c.kv_dtype) * scale;
  };
  const auto pick = [&](std::int32_t g, int plane) {
    if (c.scales == ScaleKind::none) return 1.0f;
    if (c.scales == ScaleKind::per_tensor) return scales_[static_cast<std::size_t>(plane * c.G)];
    if (c.scales == ScaleKind::per_head) return scales_[static_cast<std::size_t>(plane * c.G + g)];
    return 0.0078125f * static_cast<float>(1 + random() % 3);
  };
  for (std::int32_t t = 0; t < count; ++t) {
    for (std::int32_t i = 0; i < H() * c.D; ++i) {
      std::byte code[4];
      store_element(code, c.q_dtype, number());
      tokens->q.push_back(load_element(code, c.q_dtype));
    }
    for (std::int32_t g = 0; g < c.G; ++g) {
      tokens->k_scales.push_back(pick(g, 0));
      tokens->v_scales.push_back(pick(g, 1));
      for (std::int32_t d = 0; d < c.D; ++d) {
        tokens->k.push_back(quantised(tokens->k_scales.back()));
        tokens->v.push_back(quantised(tokens->v_scales.back()));
      }
    }
  }
}

void AttentionBatch::share_tokens(const AttentionCase::Sequence& sequence, Tokens* tokens) const {
  const Tokens& from = tokens_[sequence.shared_with];
  const auto rows = static_cast<std::ptrdiff_t>(sequence.shared * case_.G);
  std::copy_n(from.k.begin(), rows * case_.D, tokens->k.begin());
  std::copy_n(from.v.begin(), rows * case_.D, tokens->v.begin());
  std::copy_n(from.k_scales.begin(), rows, tokens->k_scales.begin());
  std::copy_n(from.v_scales.begin(), rows, tokens->v_scales.begin());
}

void AttentionBatch::store_all() {
  const AttentionCase& c = case_;
  const auto blocks_of = [&](std::int32_t tokens) { return (tokens + c.S - 1) / c.S; };
  std::int32_t blocks = 3;
  M_ = 2;
  for (const std::int32_t len : kv_len_) {
    blocks += blocks_of(len);
    M_ = std::max(M_, blocks_of(len) + 2);
  }
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(c.block_seed));

  // [block][K, V][G][S][D], then scales per token [block][K, V][G][S] of it.
  const auto e = static_cast<std::int64_t>(bytes_of(c.kv_dtype));
  kv_.G = c.G;
  kv_.S = c.S;
  kv_.D = c.D;
  kv_.dtype = c.kv_dtype;
  kv_.token_stride = c.D * e;
  kv_.head_stride = c.S * kv_.token_stride + 16;
  const std::int64_t plane = c.G * kv_.head_stride;
  const std::int64_t scales = c.scales == ScaleKind::per_token ? 2 * c.G * c.S * 4 : 0;
  kv_.block_stride = 2 * plane + scales + 16;
  arena_.assign(static_cast<std::size_t>(blocks * kv_.block_stride), std::byte{0xff});
  kv_.k = arena_.data();
  kv_.v = arena_.data() + plane;
  if (c.scales == ScaleKind::per_token) {
    kv_.scales = {reinterpret_cast<float*>(arena_.data() + 2 * plane),
                  reinterpret_cast<float*>(arena_.data() + 2 * plane + scales / 2),
                  kv_.block_stride, c.S * 4, 4};
  } else if (c.scales != ScaleKind::none) {
    kv_.scales = {scales_.data(), scales_.data() + c.G, 0, c.scales == ScaleKind::per_head ? 4 : 0,
                  0};
  }

  table_.assign(kv_len_.size() * static_cast<std::size_t>(M_), kFarOutside);
  for (std::size_t b = 0; b < kv_len_.size(); ++b)
    for (std::int32_t p = 0; p < kv_len_[b]; ++p) {
      const auto column = static_cast<std::size_t>(p / c.S);
      BlockId& block = table_[b * static_cast<std::size_t>(M_) + column];
      if (p < c.sequences[b].shared) {
        block = table_[c.sequences[b].shared_with * static_cast<std::size_t>(M_) + column];
        continue;
      }
      if (block == kFarOutside) {
        block = BlockId{ids.back()};
        ids.pop_back();
      }
      for (std::int32_t g = 0; g < c.G; ++g) {
        const std::size_t row = static_cast<std::size_t>(p * c.G + g);
        const float k_scale = tokens_[b].k_scales[row], v_scale = tokens_[b].v_scales[row];
        const std::int64_t at =
            block.value * kv_.block_stride + g * kv_.head_stride + p % c.S * kv_.token_stride;
        for (std::int32_t d = 0; d < c.D; ++d) {
          const std::size_t i = row * static_cast<std::size_t>(c.D) + static_cast<std::size_t>(d);
          store_element(kv_.k + at + d * e, c.kv_dtype, tokens_[b].k[i] / k_scale);
          store_element(kv_.v + at + d * e, c.kv_dtype, tokens_[b].v[i] / v_scale);
        }
        if (c.scales == ScaleKind::per_token) {
          const std::int64_t offset = block.value * kv_.block_stride + (g * c.S + p % c.S) * 4;
          std::memcpy(reinterpret_cast<std::byte*>(kv_.scales.k) + offset, &k_scale, 4);
          std::memcpy(reinterpret_cast<std::byte*>(kv_.scales.v) + offset, &v_scale, 4);
        }
      }
    }
}

PagedAttentionArgs AttentionBatch::args() const {
  PagedAttentionArgs args;
  args.q = q_.data();
  args.kv = kv_;
  args.block_table = table_.data();
  args.query_start = query_start_.data();
  args.kv_len = kv_len_.data();
  args.sinks = case_.has_sinks ? sinks_.data() : nullptr;
  args.B = static_cast<std::int32_t>(kv_len_.size());
  args.H = H();
  args.M = M_;
  args.q_dtype = case_.q_dtype;
  args.window = case_.window;
  args.chunk = case_.chunk;
  args.soft_cap = case_.soft_cap;
  args.scale = 1.0f / std::sqrt(static_cast<float>(case_.D));
  return args;
}

AttentionResult AttentionBatch::run(const PlanLimits& limits, std::int32_t padding) const {
  return run(args(), limits, padding);
}

AttentionResult AttentionBatch::run_token(std::size_t b, std::int32_t position) const {
  const std::int32_t query_start[] = {0, 1}, kv_len = position + 1;
  const std::int32_t i = query_start_[b + 1] - kv_len_[b] + position;
  PagedAttentionArgs with = args();
  with.q = q_.data() + static_cast<std::size_t>(i * H() * case_.D) * bytes_of(case_.q_dtype);
  with.block_table += b * static_cast<std::size_t>(M_);
  with.query_start = query_start;
  with.kv_len = &kv_len;
  with.B = 1;
  return run(with, {}, 0);
}

AttentionResult AttentionBatch::run(PagedAttentionArgs with, const PlanLimits& limits,
                                    std::int32_t padding) const {
  const std::size_t rows = static_cast<std::size_t>(with.query_start[with.B] * H());
  const std::size_t elements = rows * static_cast<std::size_t>(case_.D);
  const std::size_t element_bytes = bytes_of(case_.q_dtype);
  std::vector<std::byte> out(elements * element_bytes, std::byte{0xff});
  AttentionResult result;
  result.lse.assign(rows, std::nanf(""));
  SplitPlan plan = plan_splits(with, limits);
  PlanCounts counts = plan.counts();
  counts.splits += padding;
  counts.merged += padding;
  counts.states += padding;
  if (is_for_tensor_cores(with)) {
    counts.narrow_tiles += padding;
    counts.wide_tiles += padding;
  }
  plan.pad(counts);
  std::vector<float> states(plan.state_floats(H(), case_.D), std::nanf(""));
  const std::vector<std::byte> arena_before = arena_;

  with.out = out.data();
  with.lse = result.lse.data();
  const AttentionWork work = plan.work(states.data());
  const Expected<void> done = paged_attention_cuda(with, work, nullptr);
  EXPECT_TRUE(done.has_value()) << done.error().text;
  EXPECT_EQ(arena_, arena_before) << "wrote into the cache";
  for (std::size_t i = 0; i < elements; ++i)
    result.out.push_back(load_element(&out[i * element_bytes], case_.q_dtype));
  return result;
}

AttentionResult AttentionBatch::truth() const {
  const AttentionCase& c = case_;
  const auto D = static_cast<std::size_t>(c.D);
  const double scale = args().scale;
  AttentionResult result;
  for (std::size_t b = 0; b < tokens_.size(); ++b)
    for (std::int32_t p = kv_len_[b] - c.sequences[b].q_len; p < kv_len_[b]; ++p)
      for (std::int32_t h = 0; h < H(); ++h) {
        const float* q = &tokens_[b].q[static_cast<std::size_t>(p * H() + h) * D];
        std::vector<double> sum(D, 0.0), scores;
        std::vector<std::int32_t> seen;
        for (std::int32_t t = 0; t <= p; ++t) {
          if (!is_visible(c, p, t)) continue;
          const float* k =
              &tokens_[b].k[static_cast<std::size_t>(t * c.G + h / c.heads_per_kv) * D];
          double score = scale * std::inner_product(q, q + D, k, 0.0);
          if (c.soft_cap > 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
          scores.push_back(score);
          seen.push_back(t);
        }
        double max = kNothing, divisor = 0;
        for (const double score : scores) max = std::max(max, score);
        if (c.has_sinks) max = std::max(max, double{sinks_[static_cast<std::size_t>(h)]});
        if (c.has_sinks) divisor += std::exp(sinks_[static_cast<std::size_t>(h)] - max);
        for (std::size_t i = 0; i < scores.size(); ++i) {
          const double weight = std::exp(scores[i] - max);
          const float* v =
              &tokens_[b].v[static_cast<std::size_t>(seen[i] * c.G + h / c.heads_per_kv) * D];
          divisor += weight;
          for (std::size_t d = 0; d < D; ++d) sum[d] += weight * v[d];
        }
        for (std::size_t d = 0; d < D; ++d)
          result.out.push_back(divisor > 0 ? static_cast<float>(sum[d] / divisor) : 0.0f);
        result.lse.push_back(static_cast<float>(divisor > 0 ? max + std::log(divisor) : kNothing));
      }
  return result;
}

double AttentionBatch::worst_error(const AttentionCase& c, const AttentionResult& got,
                                   const AttentionResult& want) {
  const auto D = static_cast<std::size_t>(c.D);
  KV_CHECK(got.out.size() == want.out.size(), got.out.size(), want.out.size());
  double worst = 0;
  for (std::size_t row = 0; row < got.out.size(); row += D) {
    double error = 0, norm = 0;
    for (std::size_t i = row; i < row + D; ++i) {
      error += (double{got.out[i]} - want.out[i]) * (double{got.out[i]} - want.out[i]);
      norm += double{want.out[i]} * want.out[i];
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : error;
    worst = relative <= worst ? worst : relative;  // a NaN wins
  }
  return worst;
}

}  // namespace kvhive::testing_support
