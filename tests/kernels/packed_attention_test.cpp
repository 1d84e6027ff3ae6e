// Attention over PageLayout::packed, with pages written by cache_write_cpu: compared with double
// precision from plain arrays; and its bits, which must not depend on the rest of the batch.

#include "kernels/cpu/packed/packed_attention.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>

#include "kernels/cache_write.hpp"
#include "kernels/cpu/packed/packed_plan.hpp"
#include "kernels/element.hpp"
#include "kernels/page_address.hpp"
#include "tests/emulated/arithmetic.hpp"

namespace kvhive {
namespace {

using testing_support::Arithmetic, testing_support::ComputedBy, testing_support::name_of;
using testing_support::runs_here;

enum class Scaling { none, tensor, head, token };

struct Shape {
  std::int32_t H = 8, G = 2, D = 64, S = 16;
  std::int32_t window = 0;
  Dtype dtype = Dtype::bf16;
  Scaling scaling = Scaling::none;
  std::int32_t chunk = 0;
};

/// One sequence's part of a call: the last q_len of its first kv_len tokens.
struct Query {
  std::size_t sequence = 0;
  std::int32_t kv_len = 0;
  std::int32_t q_len = 0;
};

struct Result {
  std::vector<float> out;  ///< [T, H, D]
  std::vector<float> lse;  ///< [T, H]
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

float rounded(float value) { return float_of_bf16(bf16_of_float(value)); }

/// The value that a cache of this type stores for `value`.
float stored(float value, float scale, Dtype dtype) {
  std::byte bytes[4];
  store_element(bytes, value / scale, dtype);
  return load_element(bytes, dtype) * scale;
}

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

/// Sequences of made-up tokens; everything else in the cache is NaN.
class Cache {
 public:
  Cache(const Shape& shape, std::vector<std::int32_t> lengths, std::uint32_t block_seed = 1)
      : shape_(shape) {
    std::int32_t blocks = 3;
    for (const std::int32_t length : lengths) {
      blocks += blocks_of(length);
      width_ = std::max(width_, blocks_of(length) + 2);
    }
    std::vector<std::uint32_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(block_seed));
    table_.assign(lengths.size() * width_, BlockId{0xfffffff0u});
    for (std::size_t s = 0; s < lengths.size(); ++s)
      for (std::int32_t m = 0; m < blocks_of(lengths[s]); ++m) {
        table_[s * width_ + m] = BlockId{ids.back()};
        ids.pop_back();
      }
    kv_.G = shape.G;
    kv_.S = shape.S;
    kv_.D = shape.D;
    kv_.dtype = shape.dtype;
    kv_.layout = PageLayout::packed;
    kv_.head_stride = std::int64_t{shape.S} * shape.D * std::int64_t(bytes_of(shape.dtype)) + 64;
    const std::int64_t plane = shape.G * kv_.head_stride;
    const std::int64_t scales_bytes = std::int64_t{4} * shape.G * shape.S;
    kv_.block_stride = 2 * plane + 2 * scales_bytes + 128;
    arena_.assign(blocks * kv_.block_stride,
                  shape.dtype == Dtype::int8 ? std::byte{0x80} : std::byte{0xff});
    kv_.k = arena_.data();
    kv_.v = arena_.data() + plane;
    for (std::int32_t g = 0; g < shape.G; ++g) fixed_scales_.push_back(0.0155f + 0.004f * g);
    fixed_scales_.insert(fixed_scales_.end(), fixed_scales_.rbegin(), fixed_scales_.rend());
    if (shape.scaling == Scaling::none) {
    } else if (shape.scaling == Scaling::token) {
      for (std::int32_t b = 0; b < blocks; ++b)
        std::fill_n(arena_.begin() + b * kv_.block_stride + 2 * plane, 2 * scales_bytes,
                    std::byte{0xff});
      kv_.scales = {.k = reinterpret_cast<float*>(arena_.data() + 2 * plane),
                    .v = reinterpret_cast<float*>(arena_.data() + 2 * plane + scales_bytes),
                    .block_stride = kv_.block_stride,
                    .head_stride = shape.G % 2 == 0 ? 4 : 4 * shape.S,
                    .token_stride = shape.G % 2 == 0 ? 4 * shape.G : 4};
    } else {
      kv_.scales = {.k = fixed_scales_.data(),
                    .v = fixed_scales_.data() + shape.G,
                    .head_stride = shape.scaling == Scaling::head ? 4 : 0};
    }
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      sequences_.push_back(make(s, lengths[s]));
      write(s, 0);
    }
  }

  Result attend(const std::vector<Query>& queries, const float* sinks = nullptr) {
    std::vector<float> q;
    std::vector<BlockId> table;
    std::vector<std::int32_t> query_start{0}, kv_len;
    for (const Query& query : queries) {
      const auto end = sequences_[query.sequence].q.begin() + query.kv_len * shape_.H * shape_.D;
      q.insert(q.end(), end - query.q_len * shape_.H * shape_.D, end);
      const auto row = table_.begin() + query.sequence * width_;
      table.insert(table.end(), row, row + width_);
      query_start.push_back(query_start.back() + query.q_len);
      kv_len.push_back(query.kv_len);
    }
    const float poison = std::numeric_limits<float>::quiet_NaN();
    Result result{std::vector<float>(q.size(), poison),
                  std::vector<float>(q.size() / shape_.D, poison)};
    const PagedAttentionArgs args{.q = q.data(),
                                  .kv = kv_,
                                  .block_table = table.data(),
                                  .query_start = query_start.data(),
                                  .kv_len = kv_len.data(),
                                  .out = result.out.data(),
                                  .lse = result.lse.data(),
                                  .sinks = sinks,
                                  .B = static_cast<std::int32_t>(queries.size()),
                                  .H = shape_.H,
                                  .M = width_,
                                  .window = shape_.window,
                                  .chunk = shape_.chunk,
                                  .scale = scale()};
    EXPECT_TRUE(packed_attention_takes(args));
    paged_attention_cpu(args);
    return result;
  }

  /// Row h of the last query token, computed from the plain arrays.
  std::vector<double> attend_densely(const Query& query, std::int32_t h, double sink,
                                     double* lse) const {
    const Sequence& sequence = sequences_[query.sequence];
    const std::int32_t position = query.kv_len - 1, g = h / (shape_.H / shape_.G);
    const std::int32_t first = visible_range(position, shape_.window, shape_.chunk).begin;
    std::vector<double> scores;
    for (std::int32_t t = first; t <= position; ++t) {
      double dot = 0;
      for (std::int32_t d = 0; d < shape_.D; ++d)
        dot += double{sequence.q[(position * shape_.H + h) * shape_.D + d]} *
               sequence.stored_k[(t * shape_.G + g) * shape_.D + d];
      scores.push_back(dot * scale());
    }
    const double max = std::max(sink, *std::max_element(scores.begin(), scores.end()));
    double sum = std::exp(sink - max);
    std::vector<double> out(shape_.D);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp(scores[i] - max);
      sum += weight;
      for (std::int32_t d = 0; d < shape_.D; ++d)
        out[d] += weight * sequence.stored_v[((first + i) * shape_.G + g) * shape_.D + d];
    }
    for (double& value : out) value /= sum;
    *lse = max + std::log(sum);
    return out;
  }

  /// Overwrites k and v of a sequence's tokens from `first` on.
  void poison_from(std::size_t sequence, std::int32_t first, float value) {
    Sequence& tokens = sequences_[sequence];
    std::fill(tokens.k.begin() + first * shape_.G * shape_.D, tokens.k.end(), value);
    std::fill(tokens.v.begin() + first * shape_.G * shape_.D, tokens.v.end(), value);
    write(sequence, first);
  }

  std::int32_t row_elements() const { return shape_.H * shape_.D; }

 private:
  struct Sequence {
    std::vector<float> q;  ///< [tokens, H, D]
    std::vector<float> k;  ///< [tokens, G, D]
    std::vector<float> v;
    std::vector<float> stored_k;  ///< as the cache stores them
    std::vector<float> stored_v;
  };

  /// [tokens, G, D] as the cache stores them. `scales` are those of the kv heads, unless each token
  /// has its own.
  std::vector<float> as_stored(const std::vector<float>& values, const float* scales) const {
    std::vector<float> out;
    for (std::size_t row = 0; row * shape_.D < values.size(); ++row) {
      const std::span from(values.data() + row * shape_.D, shape_.D);
      float scale = 1;
      if (shape_.scaling == Scaling::token) {
        float amax = 0;
        for (const float value : from) amax = std::max(amax, std::fabs(value));
        scale = amax / largest_of(shape_.dtype);
      } else if (shape_.scaling != Scaling::none) {
        scale = scales[shape_.scaling == Scaling::head ? row % shape_.G : 0];
      }
      for (const float value : from) out.push_back(stored(value, scale, shape_.dtype));
    }
    return out;
  }

  Sequence make(std::size_t seed, std::int32_t tokens) const {
    Sequence sequence;
    std::mt19937 random(seed);
    const auto number = [&random] { return static_cast<float>(random() % 65536) / 16384 - 2; };
    for (std::int32_t t = 0; t < tokens; ++t) {
      // Values that bf16 holds exactly, so that only the kernel's own rounding shows.
      for (std::int32_t i = 0; i < shape_.H * shape_.D; ++i)
        sequence.q.push_back(rounded(number()));
      for (std::int32_t i = 0; i < shape_.G * shape_.D; ++i) {
        sequence.k.push_back(number());
        sequence.v.push_back(number());
      }
    }
    sequence.stored_k = as_stored(sequence.k, kv_.scales.k);
    sequence.stored_v = as_stored(sequence.v, kv_.scales.v);
    return sequence;
  }

  std::int32_t blocks_of(std::int32_t tokens) const { return (tokens + shape_.S - 1) / shape_.S; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.D)); }

  void write(std::size_t s, std::int32_t first) {
    const Sequence& sequence = sequences_[s];
    const std::int32_t elements = shape_.G * shape_.D;
    const auto tokens = static_cast<std::int32_t>(sequence.k.size() / elements);
    std::vector<std::int64_t> slots;
    for (std::int32_t t = first; t < tokens; ++t)
      slots.push_back(std::int64_t{table_[s * width_ + t / shape_.S].value} * shape_.S +
                      t % shape_.S);
    cache_write_cpu({.k = sequence.k.data() + first * elements,
                     .v = sequence.v.data() + first * elements,
                     .slot_mapping = slots.data(),
                     .kv = kv_,
                     .T = tokens - first});
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::int32_t width_ = 0;
  std::vector<BlockId> table_;
  std::vector<std::byte> arena_;
  std::vector<float> fixed_scales_;  ///< [K, V][G]
  PagedKv kv_;
};

using Case = std::tuple<Arithmetic, Shape>;

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kScalings[] = {"none", "tensor", "head", "token"};
  const Shape& s = std::get<Shape>(info.param);
  return name_of(std::get<Arithmetic>(info.param)) + "_H" + std::to_string(s.H) + "_G" +
         std::to_string(s.G) + "_D" + std::to_string(s.D) + "_S" + std::to_string(s.S) + "_W" +
         std::to_string(s.window) + "_" + std::string(to_string(s.dtype)) + "_" +
         kScalings[int(s.scaling)] + (s.chunk > 0 ? "_C" + std::to_string(s.chunk) : "");
}

class PackedAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!runs_here(arithmetic_)) GTEST_SKIP() << "this machine has no " << name_of(arithmetic_);
    computed_by_.emplace(arithmetic_);
  }

  static const Shape& shape() { return std::get<Shape>(GetParam()); }

  const Arithmetic arithmetic_ = std::get<Arithmetic>(GetParam());
  /// Three spans, or two where it takes long.
  const std::int32_t tokens_ = arithmetic_.is_emulated ? 701 : 1301;
  std::optional<ComputedBy> computed_by_;

  static std::vector<float> out_of(Cache& cache, const std::vector<Query>& queries) {
    return cache.attend(queries).out;
  }

  static void expect_close(Cache& cache, const std::vector<Query>& queries,
                           const std::vector<float>& sinks) {
    const Result result = cache.attend(queries, sinks.empty() ? nullptr : sinks.data());
    const std::int32_t H = shape().H, D = shape().D;
    std::int32_t row = 0;
    for (const Query& query : queries)
      for (std::int32_t i = 0; i < query.q_len; ++i)
        for (std::int32_t h = 0; h < H; ++h, ++row) {
          double lse;
          const double sink = sinks.empty() ? -INFINITY : sinks[h];
          const auto want = cache.attend_densely(
              {query.sequence, query.kv_len - query.q_len + i + 1, 1}, h, sink, &lse);
          double error = 0, norm = 0;
          for (std::int32_t d = 0; d < D; ++d) {
            error += std::pow(result.out[row * D + d] - want[d], 2);
            norm += std::pow(want[d], 2);
          }
          // The kernel rounds weights to bf16.
          ASSERT_LE(std::sqrt(error / norm), 4e-3) << query.kv_len << " " << i << " " << h;
          ASSERT_NEAR(result.lse[row], lse, 2e-5) << query.kv_len << " " << i << " " << h;
        }
  }
};

TEST_P(PackedAttention, MatchesDoubleSums) {
  Cache cache(shape(), {700, 31, 1, 129, 0});
  expect_close(cache, {{0, 700, 1}, {1, 31, 31}, {2, 1, 1}, {4, 0, 0}, {3, 129, 1}, {0, 300, 9}},
               {});
}

TEST_P(PackedAttention, CountsSinks) {
  Cache cache(shape(), {600, 17});
  std::vector<float> sinks(shape().H);
  for (std::size_t h = 0; h < sinks.size(); ++h) sinks[h] = static_cast<float>(h % 5) * 3 - 4;
  expect_close(cache, {{0, 600, 1}, {1, 17, 3}}, sinks);
}

TEST_P(PackedAttention, BitsAreTheSameAloneAndInABatch) {
  Cache cache(shape(), {tokens_, 700, 31, 0, 1100});
  const std::vector<Query> batch{{2, 31, 31}, {0, tokens_, 1},       {1, 700, 50},
                                 {3, 0, 0},   {0, tokens_ - 501, 7}, {4, 1100, 1}};
  std::vector<float> alone;
  for (const Query& query : batch) {
    const std::vector<float> part = out_of(cache, {query});
    alone.insert(alone.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(same_bits(out_of(cache, batch), alone));
}

TEST_P(PackedAttention, BitsAreTheSameInAnyChunking) {
  const Threads one(1);
  Cache cache(shape(), {tokens_});
  const std::vector<float> whole = out_of(cache, {{0, tokens_, tokens_}});
  for (const std::int32_t chunk : {1, 3, 16, 100}) {
    const std::int32_t first = chunk < 16 ? tokens_ - 299 : 0;
    std::vector<float> parts;
    for (std::int32_t begin = first; begin < tokens_; begin += chunk) {
      const std::int32_t end = std::min(begin + chunk, tokens_);
      const std::vector<float> part = out_of(cache, {{0, end, end - begin}});
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(std::span(whole).subspan(first * cache.row_elements()), parts)) << chunk;
  }
}

TEST_P(PackedAttention, BitsAreTheSameWithAnyNumberOfThreads) {
  Cache cache(shape(), {tokens_, 600});
  for (const std::vector<Query>& queries :
       {std::vector<Query>{{0, tokens_, 1}}, {{0, tokens_, 9}, {1, 600, 1}}, {{1, 600, 600}}}) {
    std::vector<float> by_one;
    {
      const Threads one(1);
      by_one = out_of(cache, queries);
    }
    for (const int count : {2, 5, 16}) {
      const Threads several(count);
      EXPECT_TRUE(same_bits(by_one, out_of(cache, queries))) << count << " threads";
    }
  }
}

TEST_P(PackedAttention, BitsDoNotDependOnBlockIdsOrLaterTokens) {
  const std::int32_t length = tokens_ - 301;
  Cache here(shape(), {length}, 1);
  Cache there(shape(), {tokens_, 40}, 2);
  Cache poison(shape(), {tokens_}, 3);
  poison.poison_from(0, length, std::numeric_limits<float>::quiet_NaN());
  for (const Query& query : {Query{0, length, 1}, {0, length - 1, 1}, {0, length, 60}}) {
    const std::vector<float> expected = out_of(here, {query});
    EXPECT_TRUE(same_bits(expected, out_of(there, {query})));
    EXPECT_TRUE(same_bits(expected, out_of(poison, {query})));
  }
}

TEST_P(PackedAttention, BitsOfATokenIgnoreALaterOneOfItsOwnCall) {
  const std::int32_t length = tokens_ - 301;
  Cache finite(shape(), {length});
  Cache poison(shape(), {length});
  poison.poison_from(0, length - 5, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> a = out_of(finite, {{0, length, 60}});
  const std::vector<float> b = out_of(poison, {{0, length, 60}});
  const std::size_t before = 55u * finite.row_elements();
  EXPECT_TRUE(same_bits(std::span(a).first(before), std::span(b).first(before)));
  if (shape().dtype == Dtype::bf16) {
    EXPECT_TRUE(std::isnan(b[before]));
  }
}

constexpr Dtype kE4m3 = Dtype::e4m3, kE5m2 = Dtype::e5m2, kInt8 = Dtype::int8;

INSTANTIATE_TEST_SUITE_P(
    Shapes, PackedAttention,
    testing::Combine(
        testing::Values(Arithmetic{CpuKernels::avx512_bf16},
                        Arithmetic{CpuKernels::avx512_bf16, false, DotWay::multiplications},
                        Arithmetic{CpuKernels::amx}),
        testing::Values(Shape{8, 2, 128, 16, 0}, Shape{8, 2, 64, 32, 200}, Shape{3, 3, 32, 16, 0},
                        Shape{6, 2, 96, 64, 10}, Shape{10, 2, 192, 32, 0}, Shape{7, 1, 256, 16, 33},
                        Shape{72, 1, 64, 16, 0}, Shape{4, 4, 64, 48, 600},
                        Shape{8, 2, 128, 16, 0, kE4m3, Scaling::token},
                        Shape{8, 2, 64, 32, 200, kE5m2, Scaling::tensor},
                        Shape{3, 3, 32, 16, 0, kInt8, Scaling::token},
                        Shape{6, 2, 96, 64, 10, kInt8, Scaling::head},
                        Shape{10, 2, 192, 32, 0, kE4m3, Scaling::head},
                        Shape{7, 1, 256, 16, 33, kE5m2, Scaling::none},
                        Shape{72, 1, 64, 16, 0, kE4m3, Scaling::tensor},
                        Shape{4, 4, 64, 48, 600, kInt8, Scaling::token},
                        Shape{8, 2, 64, 16, 0, Dtype::bf16, Scaling::none, 100},
                        Shape{8, 2, 64, 32, 0, kInt8, Scaling::token, 512})),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Emulated, PackedAttention,
    testing::Combine(testing::Values(Arithmetic{CpuKernels::avx512_bf16, true},
                                     Arithmetic{CpuKernels::avx512_bf16, true,
                                                DotWay::multiplications},
                                     Arithmetic{CpuKernels::amx, true}),
                     testing::Values(Shape{3, 1, 64, 16, 0}, Shape{4, 2, 32, 32, 90},
                                     Shape{20, 1, 32, 16, 0, kE4m3, Scaling::token},
                                     Shape{2, 2, 32, 48, 0, kInt8, Scaling::head},
                                     Shape{4, 2, 32, 32, 0, Dtype::bf16, Scaling::none, 90})),
    name_of_case);

/// Emulated kernels give what those of the hardware give, and dot products what multiplications
/// give, for few rows and for many.
TEST(PackedAttentionEmulation, HasTheBitsOfTheHardware) {
  for (const CpuKernels kernels : {CpuKernels::avx512_bf16, CpuKernels::amx})
    for (const Shape& shape : {Shape{4, 1, 64, 16, 0}, Shape{20, 1, 32, 32, 90},
                               Shape{4, 2, 96, 16, 0, kE5m2, Scaling::head},
                               Shape{4, 2, 32, 16, 0, kInt8, Scaling::token}}) {
      if (!runs_here({kernels})) continue;
      std::vector<float> expected;
      for (const DotWay dots : {DotWay::instruction, DotWay::multiplications})
        for (const bool is_emulated : {false, true}) {
          const Arithmetic arithmetic{kernels, is_emulated, dots};
          const ComputedBy computed_by(arithmetic);
          Cache cache(shape, {650, 70});
          const auto out = cache.attend({{0, 650, 1}, {1, 70, 70}, {0, 600, 40}}).out;
          if (expected.empty()) expected = out;
          EXPECT_TRUE(same_bits(out, expected)) << name_of(arithmetic);
        }
    }
}

/// Attends to a single token: its weight is 1, so the result is its V, exactly.
TEST(PackedCodes, HaveTheValuesOfTheirCodes) {
  constexpr std::int32_t kD = 32;
  PagedKv kv{.G = 1, .S = 16, .D = kD, .layout = PageLayout::packed};
  kv.head_stride = kv.S * kD;
  kv.block_stride = 2 * kv.head_stride;
  for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
    for (std::int32_t first = 0; first < 256; first += kD) {
      kv.dtype = dtype;
      std::vector<std::byte> arena(kv.block_stride);
      kv.k = arena.data();
      kv.v = arena.data() + kv.head_stride;
      for (std::int32_t d = 0; d < kD; ++d) kv.v[value_offset(kv, 0, d)] = std::byte(first + d);
      const std::vector<float> q(kD, 1.0f);
      std::vector<float> out(kD);
      const BlockId table{0};
      const std::int32_t query_start[] = {0, 1}, kv_len = 1;
      const PagedAttentionArgs args{.q = q.data(),
                                    .kv = kv,
                                    .block_table = &table,
                                    .query_start = query_start,
                                    .kv_len = &kv_len,
                                    .out = out.data(),
                                    .B = 1,
                                    .H = 1,
                                    .M = 1};
      paged_attention_cpu(args);
      for (std::int32_t d = 0; d < kD; ++d) {
        const std::byte code[4] = {std::byte(first + d)};
        const float want = load_element(code, dtype);
        EXPECT_TRUE(out[d] == want || (std::isnan(want) && std::isnan(out[d])))
            << to_string(dtype) << " " << first + d << ": " << out[d];
      }
    }
}

}  // namespace
}  // namespace kvhive
