#include "kv_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "config/check.hpp"

namespace kvhive::testing_support {
namespace {

constexpr std::uint32_t kFarOutside = 0xfffffff0u;
constexpr std::int32_t kSpareBlocks = 5;
constexpr std::size_t kGuard = 64;

float as_stored(float value, Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return float_of_bf16(bf16_of_float(value));
    case Dtype::f16: return float_of_f16(f16_of_float(value));
    case Dtype::f32: break;
    default: KV_CHECK(false, int(dtype));
  }
  return value;
}

void store_element(std::byte* to, float value, Dtype dtype) {
  const std::uint16_t half = dtype == Dtype::bf16 ? bf16_of_float(value) : f16_of_float(value);
  if (dtype == Dtype::f32)
    std::memcpy(to, &value, sizeof value);
  else
    std::memcpy(to, &half, sizeof half);
}

}  // namespace

KvFixture::KvFixture(Shape shape, std::vector<SequenceSpec> sequences, std::uint32_t block_seed)
    : shape_(shape) {
  for (const SequenceSpec& spec : sequences) sequences_.push_back(make_sequence(spec));
  deal_blocks(block_seed);
  for (std::size_t s = 0; s < sequences_.size(); ++s)
    for (std::int32_t p = 0; p < sequences_[s].tokens; ++p)
      for (std::int32_t g = 0; g < shape_.G; ++g) {
        const std::size_t row = (std::size_t(p) * shape_.G + g) * shape_.D;
        store(s, p, g, std::span(sequences_[s].k).subspan(row, shape_.D),
              std::span(sequences_[s].v).subspan(row, shape_.D));
      }
}

KvFixture::Sequence KvFixture::make_sequence(SequenceSpec spec) const {
  Sequence sequence{spec.tokens, {}, {}, {}};
  std::mt19937 random(spec.seed);
  // Not std::normal_distribution: two sequences of one seed must agree token by token.
  const auto number = [&random] {
    return static_cast<float>(random() % 65536) / 16384.0f - 2.0f + 1e-5f;
  };
  for (std::int32_t p = 0; p < spec.tokens; ++p) {
    for (std::int32_t i = 0; i < shape_.H * shape_.D; ++i) sequence.q.push_back(number());
    for (std::int32_t i = 0; i < shape_.G * shape_.D; ++i) {
      sequence.k.push_back(as_stored(number(), shape_.dtype));
      sequence.v.push_back(as_stored(number(), shape_.dtype));
    }
  }
  return sequence;
}

void KvFixture::deal_blocks(std::uint32_t block_seed) {
  std::int32_t blocks = kSpareBlocks;
  table_width_ = 2;  // entries past the longest sequence, too
  for (const Sequence& sequence : sequences_) {
    blocks += blocks_of(sequence.tokens);
    table_width_ = std::max(table_width_, blocks_of(sequence.tokens) + 2);
  }
  std::vector<std::uint32_t> ids(blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(block_seed));

  block_table_.assign(sequences_.size() * table_width_, kFarOutside);
  for (std::size_t s = 0; s < sequences_.size(); ++s)
    for (std::int32_t m = 0; m < blocks_of(sequences_[s].tokens); ++m) {
      block_table_[s * table_width_ + m] = ids.back();
      ids.pop_back();
    }

  // [block][K, V][G][S][D] with a gap after each head, so that no stride follows from another.
  const auto element = static_cast<std::int64_t>(bytes_of(shape_.dtype));
  kv_.G = shape_.G;
  kv_.S = shape_.S;
  kv_.D = shape_.D;
  kv_.dtype = shape_.dtype;
  kv_.token_stride = shape_.D * element;
  kv_.head_stride = shape_.S * kv_.token_stride + 3 * element;
  const std::int64_t plane = shape_.G * kv_.head_stride;
  kv_.block_stride = 2 * plane + 5 * element;
  // All ones is NaN in every dtype.
  arena_.assign(static_cast<std::size_t>(blocks * kv_.block_stride), std::byte{0xff});
  kv_.k = arena_.data();
  kv_.v = arena_.data() + plane;
}

void KvFixture::store(std::size_t sequence, std::int32_t position, std::int32_t g,
                      std::span<const float> k, std::span<const float> v) {
  const std::int64_t block = block_table_[sequence * table_width_ + position / shape_.S];
  const std::int64_t row =
      block * kv_.block_stride + g * kv_.head_stride + position % shape_.S * kv_.token_stride;
  for (std::int32_t d = 0; d < shape_.D; ++d) {
    const std::int64_t at = row + d * static_cast<std::int64_t>(bytes_of(shape_.dtype));
    store_element(kv_.k + at, k[d], shape_.dtype);
    store_element(kv_.v + at, v[d], shape_.dtype);
  }
}

void KvFixture::poison_tokens_from(std::size_t sequence, std::int32_t first, float value) {
  const std::vector<float> row(shape_.D, value);
  const std::int32_t end = blocks_of(sequences_[sequence].tokens) * shape_.S;
  for (std::int32_t p = first; p < end; ++p)
    for (std::int32_t g = 0; g < shape_.G; ++g) store(sequence, p, g, row, row);
}

void KvFixture::drop_first_blocks(std::size_t sequence, std::int32_t blocks) {
  std::fill_n(block_table_.begin() + sequence * table_width_, blocks, kFarOutside);
}

std::vector<float> KvFixture::attend(Attention attention, const std::vector<Query>& queries,
                                     std::int32_t window) {
  std::vector<float> q;
  std::vector<std::uint32_t> table;
  std::vector<std::int32_t> query_start{0}, kv_len;
  const std::int64_t token_elements = std::int64_t{shape_.H} * shape_.D;
  for (const Query& query : queries) {
    const auto end = sequences_[query.sequence].q.begin() + query.kv_len * token_elements;
    q.insert(q.end(), end - query.q_len * token_elements, end);
    const auto row = block_table_.begin() + query.sequence * table_width_;
    table.insert(table.end(), row, row + table_width_);
    query_start.push_back(query_start.back() + query.q_len);
    kv_len.push_back(query.kv_len);
  }
  const float poison = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> guarded(q.size() + 2 * kGuard, poison);
  const std::vector<std::byte> arena_before = arena_;

  PagedAttentionArgs args;
  args.q = q.data();
  args.kv = kv_;
  args.block_table = table.data();
  args.query_start = query_start.data();
  args.kv_len = kv_len.data();
  args.out = guarded.data() + kGuard;
  args.B = static_cast<std::int32_t>(queries.size());
  args.H = shape_.H;
  args.M = table_width_;
  args.window = window;
  args.scale = scale_of(shape_);
  attention(args);

  EXPECT_EQ(arena_, arena_before) << "wrote into the cache";
  const std::vector<float> out(guarded.begin() + kGuard, guarded.end() - kGuard);
  EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
  const auto is_nan = [](float x) { return std::isnan(x); };
  EXPECT_TRUE(std::all_of(guarded.begin(), guarded.begin() + kGuard, is_nan));
  EXPECT_TRUE(std::all_of(guarded.end() - kGuard, guarded.end(), is_nan));
  return out;
}

void KvFixture::attend_densely(const Sequence& sequence, std::int32_t position, std::int32_t h,
                               std::int32_t window, double* out) const {
  const std::int32_t g = h / (shape_.H / shape_.G);
  const std::int32_t first = window > 0 ? std::max(0, position + 1 - window) : 0;
  const float* q = &sequence.q[(std::size_t(position) * shape_.H + h) * shape_.D];
  const auto row = [&](const std::vector<float>& plane, std::int32_t p) {
    return &plane[(std::size_t(p) * shape_.G + g) * shape_.D];
  };
  double sum = 0;
  std::fill_n(out, shape_.D, 0.0);
  for (std::int32_t p = first; p <= position; ++p) {
    // Scores of the fixture's numbers are far from overflowing exp() in double: no max needed.
    const double weight =
        std::exp(scale_of(shape_) * std::inner_product(q, q + shape_.D, row(sequence.k, p), 0.0));
    sum += weight;
    for (std::int32_t d = 0; d < shape_.D; ++d) out[d] += weight * row(sequence.v, p)[d];
  }
  for (std::int32_t d = 0; d < shape_.D; ++d) out[d] /= sum;
}

std::vector<double> KvFixture::attend_densely(const std::vector<Query>& queries,
                                              std::int32_t window) const {
  std::vector<double> out;
  for (const Query& query : queries)
    for (std::int32_t p = query.kv_len - query.q_len; p < query.kv_len; ++p)
      for (std::int32_t h = 0; h < shape_.H; ++h) {
        out.resize(out.size() + shape_.D);
        attend_densely(sequences_[query.sequence], p, h, window, &out[out.size() - shape_.D]);
      }
  return out;
}

float scale_of(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.D)); }

double worst_relative_error(const std::vector<float>& got, const std::vector<double>& want,
                            std::int32_t D) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t row = 0; row < got.size(); row += D) {
    double error = 0, norm = 0;
    for (std::size_t i = row; i < row + D; ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    const double relative = std::sqrt(error / norm);
    worst = relative <= worst ? worst : relative;  // a NaN wins
  }
  return worst;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace kvhive::testing_support
