// The contract of latent attention and of writing its cache, for every implementation.

#include "kernels/paged_mla.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backends.hpp"
#include "kernels/element.hpp"
#include "kv_fixture.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

/// Numbers between -1 and 1.
std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(random() % 65536) / 32768.0f - 1.0f);
  return values;
}

/// One latent row computed from its definition: its bytes and their values.
struct LatentRow {
  LatentRow(MlaRow kind, const float* latent, const float* rope) : bytes(bytes_of(kind)) {
    if (kind == MlaRow::bf16) {
      for (std::size_t d = 0; d < 576; ++d) put_bf16(2 * d, d < 512 ? latent[d] : rope[d - 512]);
      return;
    }
    for (std::size_t group = 0; group < 4; ++group) {
      float amax = 0;
      for (std::size_t d = group * 128; d < group * 128 + 128; ++d)
        amax = std::max(amax, std::fabs(latent[d]));
      const float scale = amax == 0 ? 1 : amax / 448;
      std::memcpy(&bytes[512 + 4 * group], &scale, 4);
      for (std::size_t d = group * 128; d < group * 128 + 128; ++d) {
        bytes[d] = std::byte{e4m3_of_float(latent[d] / scale)};
        values.push_back(double{float_of_e4m3(std::uint8_t(bytes[d]))} * scale);
      }
    }
    for (std::size_t d = 0; d < 64; ++d) put_bf16(528 + 2 * d, rope[d]);
  }

  void put_bf16(std::size_t at, float value) {
    const std::uint16_t bits = bf16_of_float(value);
    std::memcpy(&bytes[at], &bits, sizeof bits);
    values.push_back(float_of_bf16(bits));
  }

  std::vector<std::byte> bytes;
  std::vector<double> values;  ///< [576]
};

struct MlaShape {
  MlaRow row = MlaRow::bf16;
  std::int32_t H = 16, S = 16;
  Dtype q_dtype = Dtype::f32;
};

/// Sequences of latents; everything else in the cache is NaN.
class MlaFixture {
 public:
  MlaFixture(MlaShape shape, const std::vector<std::int32_t>& lengths) : shape_(shape) {
    std::int32_t blocks = 3;
    for (const std::int32_t length : lengths) {
      width_ = std::max(width_, length / shape.S + 2);
      blocks += length / shape.S + 1;
    }
    std::vector<std::uint32_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    kv_.row = shape.row;
    kv_.S = shape.S;
    kv_.token_stride = static_cast<std::int64_t>(bytes_of(shape.row));
    kv_.block_stride = shape.S * kv_.token_stride + 48;
    arena_.assign(static_cast<std::size_t>(blocks * kv_.block_stride), std::byte{0xff});
    kv_.base = arena_.data();
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      tables_.emplace_back(width_, BlockId{2147480000u});
      rows_.emplace_back();
      for (std::int32_t t = 0; t < lengths[s]; ++t) {
        if (t % shape.S == 0) {
          tables_[s][t / shape.S] = BlockId{ids.back()};
          ids.pop_back();
        }
        const std::vector<float> row = numbers(576, static_cast<std::uint32_t>(1000 * s + t));
        rows_[s].emplace_back(shape.row, row.data(), row.data() + 512);
        std::copy(rows_[s][t].bytes.begin(), rows_[s][t].bytes.end(),
                  arena_.begin() + tables_[s][t / shape.S].value * kv_.block_stride +
                      t % shape.S * kv_.token_stride);
      }
    }
  }

  Output run(const Backend& backend, const std::vector<Query>& queries) {
    std::vector<BlockId> table;
    std::vector<std::int32_t> query_start{0}, kv_len;
    std::vector<std::byte> q;
    for (const Query& query : queries) {
      table.insert(table.end(), tables_[query.sequence].begin(), tables_[query.sequence].end());
      for (std::int32_t p = query.kv_len - query.q_len; p < query.kv_len; ++p)
        for (const float value : query_of(query.sequence, p)) {
          q.resize(q.size() + bytes_of(shape_.q_dtype));
          store_element(q.data(), q.size() / bytes_of(shape_.q_dtype) - 1, value, shape_.q_dtype);
        }
      query_start.push_back(query_start.back() + query.q_len);
      kv_len.push_back(query.kv_len);
    }
    const std::size_t rows = static_cast<std::size_t>(query_start.back()) * shape_.H;
    std::vector<std::byte> out(rows * 512 * bytes_of(shape_.q_dtype) + 64, std::byte{0xff});
    Output output{{}, std::vector<float>(rows)};
    const std::vector<std::byte> before = arena_;
    backend.mla({q.data(), kv_, table.data(), query_start.data(), kv_len.data(), out.data(),
                 output.lse.data(), static_cast<std::int32_t>(queries.size()), shape_.H, width_,
                 shape_.q_dtype, kScale});
    EXPECT_TRUE(arena_ == before) << "wrote into the cache";
    EXPECT_TRUE(std::all_of(out.end() - 64, out.end(),
                            [](std::byte byte) { return byte == std::byte{0xff}; }));
    for (std::size_t i = 0; i < rows * 512; ++i)
      output.out.push_back(load_element(out.data(), i, shape_.q_dtype));
    return output;
  }

  ExactOutput run_densely(const std::vector<Query>& queries) const {
    ExactOutput output;
    for (const Query& query : queries)
      for (std::int32_t p = query.kv_len - query.q_len; p < query.kv_len; ++p) {
        const std::vector<float> q = query_of(query.sequence, p);
        for (std::int32_t h = 0; h < shape_.H; ++h)
          attend_densely(rows_[query.sequence], p, &q[h * 576], output);
      }
    return output;
  }

 private:
  static constexpr float kScale = 0.07f;

  std::vector<float> query_of(std::size_t sequence, std::int32_t p) const {
    std::vector<float> q = numbers(static_cast<std::size_t>(shape_.H) * 576,
                                   static_cast<std::uint32_t>(77 * p + sequence));
    std::byte element[4];
    for (float& value : q) {
      store_element(element, value, shape_.q_dtype);
      value = load_element(element, shape_.q_dtype);
    }
    return q;
  }

  static void attend_densely(const std::vector<LatentRow>& rows, std::int32_t p, const float* q,
                             ExactOutput& output) {
    double sum = 0;
    std::vector<double> out(512, 0.0);
    for (std::int32_t t = 0; t <= p; ++t) {
      const std::vector<double>& row = rows[t].values;
      const double weight = std::exp(kScale * std::inner_product(q, q + 576, row.begin(), 0.0));
      sum += weight;
      for (std::size_t d = 0; d < 512; ++d) out[d] += weight * row[d];
    }
    for (const double value : out) output.out.push_back(value / sum);
    output.lse.push_back(std::log(sum));
  }

  MlaShape shape_;
  PagedLatents kv_;
  std::int32_t width_ = 2;
  std::vector<std::byte> arena_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<LatentRow>> rows_;
};

class PagedMla : public testing::TestWithParam<Backend> {};

constexpr MlaShape kShapes[] = {
    {MlaRow::bf16, 16, 16, Dtype::f32},  {MlaRow::fp8, 16, 64, Dtype::bf16},
    {MlaRow::fp8, 1, 16, Dtype::f32},    {MlaRow::bf16, 3, 8, Dtype::f16},
    {MlaRow::bf16, 33, 64, Dtype::bf16}, {MlaRow::fp8, 128, 32, Dtype::f32}};

TEST_P(PagedMla, GivesTheDenseResult) {
  for (const MlaShape& shape : kShapes) {
    const std::int32_t longest = shape.H > 16 ? 150 : 530;
    MlaFixture fixture(shape, {1, 0, 17, longest, 129});
    for (const std::vector<Query>& queries :
         {std::vector<Query>{{0, 1, 1}, {1, 0, 0}, {2, 17, 1}, {3, longest, 1}},
          {{2, 17, 5}, {4, 129, 2}}}) {
      const Output got = fixture.run(GetParam(), queries);
      const ExactOutput want = fixture.run_densely(queries);
      EXPECT_LE(worst_relative_error(got.out, want.out, 512),
                tolerance_of({.q_dtype = shape.q_dtype}))
          << "H " << shape.H;
      EXPECT_LE(worst_error(got.lse, want.lse), 2e-4);
    }
  }
}

TEST_P(PagedMla, GivesTheSameBitsHoweverTheWorkIsCut) {
  for (const MlaShape& shape : {kShapes[0], kShapes[1]}) {
    MlaFixture fixture(shape, {1300, 40});
    const std::vector<Query> queries{{0, 1300, 3}, {1, 40, 40}};
    const Workers one(GetParam(), 1);
    const Output by_one = fixture.run(GetParam(), queries);
    Output parts;
    for (const Query& query : {Query{0, 1298, 1}, {0, 1300, 2}, {1, 11, 11}, {1, 40, 29}}) {
      const Output part = fixture.run(GetParam(), {query});
      parts.out.insert(parts.out.end(), part.out.begin(), part.out.end());
      parts.lse.insert(parts.lse.end(), part.lse.begin(), part.lse.end());
    }
    EXPECT_TRUE(same_bits(by_one.out, parts.out) && same_bits(by_one.lse, parts.lse));
    for (const int count : {2, 3, 16}) {
      const Workers workers(GetParam(), count);
      EXPECT_TRUE(same_bits(by_one.out, fixture.run(GetParam(), queries).out)) << count;
    }
  }
}

TEST_P(PagedMla, WritesEveryFieldOfARowAndTouchesNothingElse) {
  constexpr std::int32_t kTokens = 50, kSlots = 64, S = 8;
  for (const MlaRow kind : {MlaRow::bf16, MlaRow::fp8})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      const std::int64_t row_stride = static_cast<std::int64_t>(bytes_of(kind)) + 16;
      const std::int64_t block_stride = S * row_stride + 32;
      std::vector<std::byte> arena(kSlots / S * block_stride, std::byte{0xcb}), want = arena;
      std::vector<std::byte> latent(kTokens * 512 * bytes_of(dtype)),
          rope(kTokens * 64 * bytes_of(dtype));
      std::vector<std::int64_t> slots;
      for (std::int32_t t = 0; t < kTokens; ++t) {
        slots.push_back(t % 7 == 2 ? -1 : t * 5 % kSlots);
        std::vector<float> row = numbers(576, static_cast<std::uint32_t>(t));
        if (t == 4) std::fill_n(row.begin() + 128, 128, 0.0f);  // a group of zeros
        for (std::size_t d = 0; d < 576; ++d) {
          std::vector<std::byte>& to = d < 512 ? latent : rope;
          const std::size_t i = d < 512 ? t * 512 + d : t * 64 + d - 512;
          store_element(to.data(), i, row[d], dtype);
          row[d] = load_element(to.data(), i, dtype);
        }
        if (slots[t] < 0) continue;
        const LatentRow expected(kind, row.data(), row.data() + 512);
        std::copy(expected.bytes.begin(), expected.bytes.end(),
                  want.begin() + slots[t] / S * block_stride + slots[t] % S * row_stride);
      }
      GetParam().mla_write({latent.data(),
                            rope.data(),
                            slots.data(),
                            {arena.data(), block_stride, row_stride, S, kind},
                            kTokens,
                            dtype});
      EXPECT_TRUE(arena == want) << int(kind) << ' ' << to_string(dtype);
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedMla, testing::ValuesIn(backends_with_mla()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
