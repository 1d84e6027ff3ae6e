// Paged attention on the emulated GPU: compared with double precision; the same bits in every
// schedule.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/kernels/cuda/attention_case.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::AttentionBatch;
using testing_support::AttentionCase;
using testing_support::AttentionResult;
using testing_support::in_every_schedule;
using testing_support::ScaleKind;

/// On tensor cores, weights are rounded to the type of the elements.
double tolerance(const AttentionCase& c) {
  const bool by_tensor_cores = c.heads_per_kv > 2;
  if (c.q_dtype == Dtype::bf16) return by_tensor_cores ? 4e-3 : 3e-3;
  if (c.q_dtype == Dtype::f16) return by_tensor_cores ? 8e-4 : 5e-4;
  return 1e-5;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_right(const AttentionCase& c) {
  SCOPED_TRACE(c.describe());
  const AttentionBatch batch(c);
  const AttentionResult want = batch.truth(), first = batch.run();
  EXPECT_LE(AttentionBatch::worst_error(c, first, want), tolerance(c));
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (std::isinf(want.lse[i]))
      EXPECT_EQ(first.lse[i], want.lse[i]);
    else
      EXPECT_NEAR(first.lse[i], want.lse[i], 2e-4) << i;
  }
  in_every_schedule([&] {
    const AttentionResult again = batch.run();
    EXPECT_TRUE(same_bits(again.out, first.out));
    EXPECT_TRUE(same_bits(again.lse, first.lse));
  });
}

constexpr Dtype kQueries[] = {Dtype::bf16, Dtype::f16, Dtype::f32};
constexpr Dtype kCaches[] = {Dtype::bf16, Dtype::f16,  Dtype::f32,
                             Dtype::e4m3, Dtype::e5m2, Dtype::int8};
constexpr std::int32_t kHeadSizes[] = {64, 80, 96, 112, 120, 128, 192, 256};
constexpr std::int32_t kTensorHeadSizes[] = {64, 80, 96, 112, 128, 192, 256};

TEST(PagedAttentionCuda, EveryHeadSizeAndDtypeIsRight) {
  std::uint32_t seed = 0;
  for (const Dtype kv : kCaches)
    for (const std::int32_t D : kHeadSizes) {
      AttentionCase c;
      c.seed = c.block_seed = ++seed;
      c.kv_dtype = kv;
      c.q_dtype = kQueries[seed % 3];
      c.D = D;
      c.S = 8 << seed % 3;
      c.heads_per_kv = 1 + static_cast<std::int32_t>(seed % 2);
      c.sequences = {{37, 1}, {0, 0}, {1, 1}};
      if (bytes_of(kv) == 1) c.scales = static_cast<ScaleKind>(seed % 4);
      expect_right(c);
    }
}

TEST(PagedAttentionCuda, SplitsAreMergedRight) {
  AttentionCase c;
  c.D = 128;
  for (const Dtype q : kQueries) {
    c.q_dtype = q;
    c.sequences = {{127, 1}, {128, 1}, {129, 1}, {257, 1}, {400, 2}};
    c.has_sinks = q == Dtype::f16;
    expect_right(c);
  }
}

TEST(PagedAttentionCuda, PrefillIsCausal) {
  AttentionCase c;
  c.q_dtype = Dtype::f32;
  c.kv_dtype = Dtype::f32;
  c.sequences = {{17, 17}, {130, 5}, {33, 2}};
  expect_right(c);
}

TEST(PagedAttentionCuda, OptionsOfTheScoreAreRight) {
  AttentionCase base;
  base.q_dtype = Dtype::f16;
  base.kv_dtype = Dtype::f16;
  base.heads_per_kv = 3;
  base.S = 8;
  base.sequences = {{150, 1}, {9, 3}, {64, 2}};
  std::vector<AttentionCase> cases(7, base);
  cases[0].soft_cap = 0.5f;
  cases[1].soft_cap = 5;
  cases[2].has_sinks = true;
  cases[3].window = 1;
  cases[4].window = 64;
  cases[5].chunk = 32;
  cases[6].window = 100;
  for (const AttentionCase& c : cases) expect_right(c);
}

TEST(PagedAttentionCuda, TensorCoresTakeEveryGroupOfHeads) {
  std::uint32_t seed = 300;
  for (const std::int32_t heads : {3, 4, 5, 7, 8, 16, 17})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      AttentionCase c;
      c.seed = c.block_seed = ++seed;
      c.q_dtype = c.kv_dtype = dtype;
      c.G = 1 + static_cast<std::int32_t>(seed % 2);
      c.heads_per_kv = heads;
      c.D = kHeadSizes[seed % std::size(kHeadSizes)];
      c.S = 8 << seed % 3;
      c.sequences = {{70, 1}, {0, 0}, {1, 1}, {130, 2}};
      c.window = seed % 3 == 0 ? 40 : 0;
      c.soft_cap = seed % 4 == 0 ? 8.0f : 0.0f;
      c.has_sinks = seed % 3 == 1;
      c.scales = seed % 4 == 1 ? ScaleKind::per_head : ScaleKind::none;
      expect_right(c);
    }
}

TEST(PagedAttentionCuda, TensorCoresTakeEveryHeadSize) {
  for (const std::int32_t D : kTensorHeadSizes)
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      AttentionCase c;
      c.q_dtype = c.kv_dtype = dtype;
      c.heads_per_kv = 4;
      c.G = 1;
      c.D = D;
      c.sequences = {{150, 1}, {63, 1}, {65, 1}};
      expect_right(c);
    }
}

TEST(PagedAttentionCuda, TensorCoresTakeEightBits) {
  std::uint32_t seed = 500;
  for (const Dtype kv : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
    for (const Dtype q : {Dtype::bf16, Dtype::f16})
      for (const ScaleKind scales :
           {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head, ScaleKind::per_token}) {
        AttentionCase c;
        c.seed = c.block_seed = ++seed;
        c.q_dtype = q;
        c.kv_dtype = kv;
        c.scales = scales;
        c.heads_per_kv = 3 + static_cast<std::int32_t>(seed % 7);
        c.D = kTensorHeadSizes[seed % std::size(kTensorHeadSizes)];
        c.S = 8 << seed % 3;
        c.sequences = {{70, 1}, {0, 0}, {1, 1}, {130, 4}};
        c.window = seed % 3 == 0 ? 40 : 0;
        c.soft_cap = seed % 4 == 0 ? 8.0f : 0.0f;
        c.has_sinks = seed % 3 == 1;
        expect_right(c);
      }
}

TEST(PagedAttentionCuda, AnyCombinationIsRight) {
  std::mt19937 random(20);
  const auto pick = [&random](const auto& from) { return from[random() % std::size(from)]; };
  const auto pick_of = [&random](std::initializer_list<std::int32_t> from) {
    return from.begin()[random() % from.size()];
  };
  for (int i = 0; i < 80; ++i) {
    AttentionCase c;
    c.seed = c.block_seed = 100 + static_cast<std::uint32_t>(i);
    c.q_dtype = pick(kQueries);
    c.kv_dtype = pick(kCaches);
    c.D = pick(kHeadSizes);
    c.S = pick_of({8, 16, 32, 64});
    c.G = pick_of({1, 2, 3});
    c.heads_per_kv = pick_of({1, 2, 3, 4});
    c.sequences.clear();
    for (std::uint32_t n = 1 + random() % 4; n > 0; --n) {
      const std::int32_t len = pick_of({0, 1, 7, 8, 16, 17, 64, 129, 180});
      c.sequences.push_back({len, std::min<std::int32_t>(len, pick_of({1, 1, 3}))});
    }
    c.window = pick_of({0, 0, 0, 1, 5, 64});
    c.chunk = pick_of({0, 0, 0, 48});
    c.soft_cap = static_cast<float>(pick_of({0, 0, 30, 3}));
    c.has_sinks = random() % 3 == 0;
    if (bytes_of(c.kv_dtype) == 1) c.scales = static_cast<ScaleKind>(random() % 4);
    expect_right(c);
  }
}

/// Plans that a batch may get; bits must not depend on them.
constexpr PlanLimits kPlans[] = {
    {},
    {.tiles = 1},        // one run for each token
    {.tiles = 1 << 30},  // each piece is a run of its own
    {.states = 0,
     .shared_tokens = 64},  // as few states as possible; prefixes of one piece are shared
    {.tiles = 4, .shared_tokens = 1 << 30}  // no sharing between sequences
};

/// Expects the right results and, in any plan, the bits that each token has alone.
void expect_same_bits_alone(const AttentionCase& c) {
  SCOPED_TRACE(c.describe());
  const AttentionBatch batch(c);
  AttentionResult alone;
  for (std::size_t b = 0; b < c.sequences.size(); ++b)
    for (std::int32_t i = c.sequences[b].q_len; i > 0; --i) {
      const AttentionResult token = batch.run_token(b, c.sequences[b].kv_len - i);
      alone.out.insert(alone.out.end(), token.out.begin(), token.out.end());
      alone.lse.insert(alone.lse.end(), token.lse.begin(), token.lse.end());
    }
  EXPECT_LE(AttentionBatch::worst_error(c, alone, batch.truth()), tolerance(c));
  for (const PlanLimits& limits : kPlans) {
    const AttentionResult together = batch.run(limits);
    EXPECT_TRUE(same_bits(together.out, alone.out)) << limits.tiles;
    EXPECT_TRUE(same_bits(together.lse, alone.lse)) << limits.tiles;
  }
  in_every_schedule([&] { EXPECT_TRUE(same_bits(batch.run({.tiles = 8}).out, alone.out)); });
}

TEST(PagedAttentionCuda, ATokensBitsDoNotDependOnTheBatch) {
  for (const std::int32_t heads : {2, 4}) {  // without and with tensor cores
    AttentionCase c;
    c.D = 128;
    c.heads_per_kv = heads;
    c.window = 250;
    c.sequences = {{300, 1}, {17, 1}, {302, 7}, {520, 2}};
    expect_same_bits_alone(c);
  }
}

TEST(PagedAttentionCuda, PrefillHasTheBitsOfDecode) {
  AttentionCase c;
  c.G = 1;
  for (const std::int32_t heads : {3, 4, 8, 20}) {
    c.heads_per_kv = heads;
    c.q_dtype = c.kv_dtype = heads == 4 ? Dtype::f16 : Dtype::bf16;
    c.sequences = {{150, 33}, {18, 18}, {1, 1}};
    expect_same_bits_alone(c);
  }
}

TEST(PagedAttentionCuda, CascadesHaveTheBitsOfDecode) {
  AttentionCase c;
  c.G = 1;
  c.heads_per_kv = 4;
  // All but one share a prompt; two of them share more.
  c.sequences = {{260, 1}, {200, 1, 192, 0}, {230, 2, 208, 1}, {70, 1}, {129, 1, 128, 2}};
  expect_same_bits_alone(c);
  // More rows than fit into a tile; all sequences are the same.
  c.sequences.assign(20, {140, 1, 128, 0});
  c.sequences[0].shared = 0;
  c.sequences[19].shared = 140 / 16 * 16;
  expect_same_bits_alone(c);
}

TEST(PagedAttentionCuda, PaddingChangesNoBits) {
  AttentionCase c;
  c.G = 1;
  for (const std::int32_t heads : {2, 4, 20}) {  // without tensor cores, narrow tiles, wide ones
    c.heads_per_kv = heads;
    c.sequences = {{300, 1}, {17, 1}, {290, 1, 272, 0}};
    const AttentionBatch batch(c);
    const AttentionResult plain = batch.run();
    in_every_schedule([&] {
      const AttentionResult padded = batch.run({.tiles = 8}, 3);
      EXPECT_TRUE(same_bits(padded.out, plain.out)) << heads;
      EXPECT_TRUE(same_bits(padded.lse, plain.lse)) << heads;
    });
  }
}

TEST(PagedAttentionCuda, OptionsHaveTheBitsOfDecode) {
  AttentionCase base;
  base.G = 1;
  base.heads_per_kv = 4;
  base.D = 80;
  base.S = 8;
  base.sequences = {{160, 5}, {150, 1, 136, 0}, {160, 1, 136, 0}, {131, 3, 128, 2}};
  std::vector<AttentionCase> cases(7, base);
  cases[0].soft_cap = 0.5f;
  cases[1].soft_cap = 5;
  cases[2].has_sinks = true;
  cases[3].window = 5;
  cases[4].window = 70;
  cases[5].chunk = 48;
  cases[6] = {cases[0]};
  cases[6].chunk = 130;
  cases[6].window = 64;
  cases[6].soft_cap = 8;
  cases[6].has_sinks = true;
  for (const AttentionCase& c : cases) expect_same_bits_alone(c);
}

TEST(PagedAttentionCuda, EightBitsHaveTheBitsOfDecode) {
  AttentionCase c;
  c.G = 2;
  c.heads_per_kv = 4;
  c.sequences = {{150, 9}, {140, 1, 128, 0}, {145, 1, 128, 0}};
  for (const auto& [kv, scales] : {std::pair{Dtype::e4m3, ScaleKind::per_head},
                                   {Dtype::e5m2, ScaleKind::none},
                                   {Dtype::int8, ScaleKind::per_token}}) {
    c.kv_dtype = kv;
    c.scales = scales;
    expect_same_bits_alone(c);
  }
}

TEST(PagedAttentionCuda, AnyBatchHasTheBitsOfDecode) {
  std::mt19937 random(30);
  const auto pick_of = [&random](std::initializer_list<std::int32_t> from) {
    return from.begin()[random() % from.size()];
  };
  for (int i = 0; i < 25; ++i) {
    AttentionCase c;
    c.seed = c.block_seed = 200 + static_cast<std::uint32_t>(i);
    c.q_dtype = random() % 2 == 0 ? Dtype::bf16 : Dtype::f16;
    c.kv_dtype = bytes_of(kCaches[random() % 6]) == 1 ? kCaches[3 + random() % 3] : c.q_dtype;
    c.D = kTensorHeadSizes[random() % std::size(kTensorHeadSizes)];
    c.S = pick_of({8, 16, 32});
    c.G = pick_of({1, 2});
    c.heads_per_kv = pick_of({3, 4, 8, 17});
    c.sequences = {{pick_of({130, 160, 210}), pick_of({1, 1, 6})}};
    for (std::uint32_t n = random() % 4; n > 0; --n) {
      const std::size_t with = random() % c.sequences.size();
      const std::int32_t shared = std::min(c.sequences[with].kv_len, pick_of({0, 64, 128, 160}));
      c.sequences.push_back(
          {shared + pick_of({3, 40, 70}), pick_of({1, 1, 2, 3}), shared / c.S * c.S, with});
    }
    c.window = pick_of({0, 0, 0, 20, 100});
    c.chunk = pick_of({0, 0, 0, 72});
    c.soft_cap = static_cast<float>(pick_of({0, 0, 3}));
    c.has_sinks = random() % 3 == 0;
    if (bytes_of(c.kv_dtype) == 1) c.scales = static_cast<ScaleKind>(random() % 4);
    expect_same_bits_alone(c);
  }
}

TEST(PagedAttentionCuda, RefusesWhatItCannotDo) {
  const AttentionBatch batch{AttentionCase{}};
  const SplitPlan plan = batch.plan();
  AttentionWork work = plan.work(nullptr);
  const auto refused = [&](auto change) {
    PagedAttentionArgs args = batch.args();
    change(args);
    const std::uint64_t before = simt::statistics().blocks;
    const Expected<void> done = paged_attention_cuda(args, work, nullptr);
    EXPECT_EQ(simt::statistics().blocks, before);
    return done ? "" : done.error().text;
  };
  EXPECT_NE(refused([](auto& a) { a.kv.D = 0; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.D = 264; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.D = 68; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.S = 12; }), "");
  EXPECT_NE(refused([](auto& a) { a.H = 3; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.token_stride += 2; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.layout = PageLayout::packed; }), "");
  EXPECT_NE(refused([](auto& a) { a.q_dtype = Dtype::e4m3; }), "");
  EXPECT_NE(refused([](auto& a) { a.kv.scales.token_stride = 4; }), "");
  EXPECT_NE(refused([](auto& a) {
              a.kv.dtype = Dtype::int8;
              a.kv.scales.token_stride = 4;
            }),
            "");
  work.states_count = 1;
  EXPECT_NE(refused([](auto&) {}), "");
}

}  // namespace
}  // namespace kvhive
