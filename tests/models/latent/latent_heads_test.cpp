#include "models/latent/latent_heads.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace kvhive {
namespace {

constexpr std::int32_t kHeads = 3;
constexpr LatentShape kShape{.rank = 32, .rope = 8, .nope = 16, .value = 24};
constexpr std::int32_t kRows = kHeads * (kShape.nope + kShape.value);

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Heads {
  std::vector<float> kv_b = random_floats(std::size_t(kRows) * kShape.rank, 1);
  MatmulWeights weights{Dtype::f32, kRows, kShape.rank, std::as_bytes(std::span(kv_b))};
  LatentHeads heads{weights, BytesLive::as_the_model, kHeads, kShape};

  float w(std::int32_t head, std::int32_t row, std::int32_t column) const {
    return kv_b[((head * (kShape.nope + kShape.value)) + row) * kShape.rank + column];
  }
};

TEST(LatentHeads, AbsorbedQueriesScoreLatentsAsPlainOnesScoreKeys) {
  const Heads of;
  const auto q = random_floats(2 * kHeads * kShape.query(), 2);
  LineVector<float> rows(2 * kHeads * kShape.row()), scratch;
  of.heads.absorb(q, rows, scratch);
  EXPECT_LE(scratch.size(), LatentHeads::scratch_floats(2, kShape));
  const auto latent = random_floats(kShape.rank, 3);
  for (std::int32_t t = 0; t < 2; ++t)
    for (std::int32_t h = 0; h < kHeads; ++h) {
      const float* query = &q[(t * kHeads + h) * kShape.query()];
      const float* row = &rows[(t * kHeads + h) * kShape.row()];
      double plain = 0, absorbed = 0;
      for (std::int32_t i = 0; i < kShape.nope; ++i)
        for (std::int32_t c = 0; c < kShape.rank; ++c)
          plain += double{query[i]} * of.w(h, i, c) * latent[c];
      for (std::int32_t c = 0; c < kShape.rank; ++c) absorbed += double{row[c]} * latent[c];
      EXPECT_NEAR(absorbed, plain, 1e-4);
      EXPECT_TRUE(std::equal(row + kShape.rank, row + kShape.row(), query + kShape.nope));
    }
}

TEST(LatentHeads, ExpandingASumOfLatentsIsTheSumOfValues) {
  const Heads of;
  const auto attended = random_floats(2 * kHeads * kShape.rank, 4);
  LineVector<float> values(2 * kHeads * kShape.value), scratch;
  of.heads.expand(attended, values, scratch);
  for (std::int32_t t = 0; t < 2; ++t)
    for (std::int32_t h = 0; h < kHeads; ++h)
      for (std::int32_t i = 0; i < kShape.value; ++i) {
        double sum = 0;
        for (std::int32_t c = 0; c < kShape.rank; ++c)
          sum += double{of.w(h, kShape.nope + i, c)} * attended[(t * kHeads + h) * kShape.rank + c];
        EXPECT_NEAR(values[(t * kHeads + h) * kShape.value + i], sum, 1e-4);
      }
}

/// Of an absorbed matrix half is copied, and all of it where its bytes do not last.
TEST(LatentHeads, BytesThatDoNotLastAreCopied) {
  const Heads of;
  const std::size_t half = sizeof(float) * kHeads * kShape.nope * kShape.rank;
  EXPECT_EQ(of.heads.owned_bytes(), half);
  std::vector<float> gone = of.kv_b;
  const LatentHeads copied({Dtype::f32, kRows, kShape.rank, std::as_bytes(std::span(gone))},
                           BytesLive::for_the_call, kHeads, kShape);
  std::ranges::fill(gone, NAN);
  EXPECT_EQ(copied.owned_bytes(), sizeof(float) * kRows * kShape.rank);
  const auto attended = random_floats(kHeads * kShape.rank, 5);
  LineVector<float> values(kHeads * kShape.value), again(values.size()), scratch;
  of.heads.expand(attended, values, scratch);
  copied.expand(attended, again, scratch);
  EXPECT_EQ(again, values);
}

/// A token's bits are the same alone and among others.
TEST(LatentHeads, NeighboursDoNotChangeBits) {
  const Heads of;
  constexpr std::int32_t kTokens = 37;
  const std::size_t in = kHeads * kShape.query(), out = kHeads * kShape.row();
  const auto q = random_floats(kTokens * in, 6);
  LineVector<float> all(kTokens * out), one(out), scratch;
  of.heads.absorb(q, all, scratch);
  for (std::int32_t t = 0; t < kTokens; ++t) {
    of.heads.absorb(std::span(q).subspan(t * in, in), one, scratch);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + std::ptrdiff_t(t * out))) << t;
  }
}

}  // namespace
}  // namespace kvhive
