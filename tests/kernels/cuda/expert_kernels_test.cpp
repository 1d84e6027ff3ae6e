// A mixture of experts on the emulated GPU (or a real one: tools/gpu): compared with its
// references; the same bits in every schedule, alone and in a batch; nothing written beside.

#include "kernels/expert_kernels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/guarded.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::Guarded;
using testing_support::in_every_schedule;
using testing_support::random_floats;

constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

void expect_done(const Expected<void>& done) {
  ASSERT_TRUE(done) << done.error().text;
  testing_support::finish_kernels();
}

struct Routing {
  std::int32_t T, E, k;
  bool are_normed = false;
  std::int32_t groups = 1, chosen_groups = 1;
  bool are_sigmoids = false;
};

/// Whole numbers, which Guarded has no type for.
using Numbers = std::vector<std::int32_t>;

struct Chosen {
  Numbers experts;
  std::vector<float> weights;
};

template <class Choose>
Chosen choose(const Routing& r, std::span<const float> logits, Choose kernel) {
  const auto T = static_cast<std::int32_t>(logits.size() / std::size_t(r.E));
  Chosen chosen{Numbers(std::size_t(T) * r.k, -7), std::vector<float>(std::size_t(T) * r.k)};
  kernel(ChooseExpertsArgs{.logits = logits.data(),
                           .experts = chosen.experts.data(),
                           .weights = chosen.weights.data(),
                           .T = T,
                           .E = r.E,
                           .k = r.k,
                           .are_weights_normed = r.are_normed,
                           .are_sigmoids = r.are_sigmoids,
                           .scale = 1.5f,
                           .groups = r.groups,
                           .chosen_groups = r.chosen_groups});
  return chosen;
}

void choose_on_gpu(const ChooseExpertsArgs& args) {
  expect_done(choose_experts_cuda(args, nullptr));
}

constexpr Routing kRoutings[] = {{1, 1, 1},
                                 {3, 6, 2},
                                 {9, 60, 4, true},
                                 {5, 128, 8, true},
                                 {6, 160, 6, false, 8, 3},
                                 {2, 1024, 32, true, 4, 4},
                                 {7, 8, 8},
                                 {9, 16, 1, false, 1, 1, true},
                                 {4, 60, 3, false, 1, 1, true}};

TEST(ChooseExpertsCuda, TakesTheMostLikelyOnes) {
  for (const Routing& r : kRoutings) {
    const auto logits = random_floats(std::size_t(r.T) * r.E, 1, 2);
    const Chosen want = choose(r, logits, choose_experts_reference);
    const Chosen got = choose(r, logits, choose_on_gpu);
    EXPECT_EQ(got.experts, want.experts) << r.E;
    for (std::size_t i = 0; i < got.weights.size(); ++i)
      EXPECT_NEAR(got.weights[i], want.weights[i], 2e-6f * want.weights[i]) << r.E << ", " << i;
    in_every_schedule([&] {
      const Chosen again = choose(r, logits, choose_on_gpu);
      EXPECT_EQ(again.experts, got.experts);
      EXPECT_EQ(again.weights, got.weights);
    });
    for (std::int32_t t = 0; t < r.T; ++t) {
      const Chosen alone =
          choose(r, std::span(logits).subspan(std::size_t(t) * r.E, r.E), choose_on_gpu);
      const auto first = std::ptrdiff_t(t) * r.k;
      EXPECT_TRUE(
          std::equal(alone.weights.begin(), alone.weights.end(), got.weights.begin() + first));
    }
  }
}

TEST(ChooseExpertsCuda, OfEqualOnesTakesTheLowerNumbers) {
  const Routing plain{2, 40, 3};
  const std::vector<float> equal(80, 0.25f);
  EXPECT_THAT(choose(plain, equal, choose_on_gpu).experts, testing::ElementsAre(0, 1, 2, 0, 1, 2));
  const Routing grouped{1, 8, 2, false, 4, 2};
  const std::vector<float> logits{0, 3, 3, 0, 1, 3, 0, 0};  // groups 0, 1 and 2 are equal
  EXPECT_THAT(choose(grouped, logits, choose_on_gpu).experts, testing::ElementsAre(1, 2));
}

TEST(ChooseExpertsCuda, ATokenWithoutNumbersGetsDifferentExpertsAndHarmsNoOther) {
  const Routing r{2, 40, 3};
  auto logits = random_floats(80, 1);
  const Chosen before = choose(r, logits, choose_on_gpu);
  std::fill_n(logits.begin(), 40, NAN);
  const Chosen after = choose(r, logits, choose_on_gpu);
  EXPECT_LT(after.experts[0], after.experts[1]);
  EXPECT_LT(after.experts[1], after.experts[2]);
  EXPECT_TRUE(
      std::equal(after.experts.begin() + 3, after.experts.end(), before.experts.begin() + 3));
}

struct Sorted {
  Numbers pairs, places, first;
  bool operator==(const Sorted&) const = default;
};

template <class Sort>
Sorted sort_pairs(const Numbers& experts, std::int32_t E, std::int32_t k, Sort kernel) {
  Sorted sorted{Numbers(experts.size(), -7), Numbers(experts.size(), -7), Numbers(E + 1, -7)};
  kernel(SortByExpertArgs{.experts = experts.data(),
                          .pairs = sorted.pairs.data(),
                          .places = sorted.places.data(),
                          .first = sorted.first.data(),
                          .T = static_cast<std::int32_t>(experts.size()) / k,
                          .E = E,
                          .k = k});
  return sorted;
}
void sort_on_gpu(const SortByExpertArgs& args) { expect_done(sort_by_expert_cuda(args, nullptr)); }

Numbers random_experts(std::int32_t T, std::int32_t E, std::int32_t k) {
  std::mt19937 random(static_cast<unsigned>(T));
  Numbers all(E), experts;
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t t = 0; t < T; ++t) {
    std::ranges::shuffle(all, random);
    Numbers chosen(all.begin(), all.begin() + k);
    std::ranges::sort(chosen);
    experts.insert(experts.end(), chosen.begin(), chosen.end());
  }
  return experts;
}

TEST(SortByExpertCuda, SortsPairsAndKeepsTheirOrder) {
  for (const Routing& r :
       {Routing{0, 3, 1}, Routing{1, 6, 2}, Routing{90, 5, 2}, Routing{700, 64, 6}}) {
    const Numbers experts = random_experts(r.T, r.E, r.k);
    const Sorted want = sort_pairs(experts, r.E, r.k, sort_by_expert_reference);
    in_every_schedule(
        [&] { EXPECT_TRUE(sort_pairs(experts, r.E, r.k, sort_on_gpu) == want) << r.T; });
  }
  const Numbers one(300, 2);  // all to one expert
  EXPECT_TRUE(sort_pairs(one, 4, 1, sort_on_gpu) ==
              sort_pairs(one, 4, 1, sort_by_expert_reference));
}

/// The operands of a product of experts.
class ExpertProduct {
 public:
  ExpertProduct(std::int32_t E, std::int32_t k, std::int32_t N, std::int32_t K, Numbers experts,
                Dtype dtype, bool is_gathered)
      : E_(E),
        k_(k),
        N_(N),
        K_(K),
        rows_(static_cast<std::int32_t>(experts.size())),
        dtype_(dtype),
        is_gathered_(is_gathered),
        sorted_(sort_pairs(experts, E, k, sort_by_expert_reference)),
        x_(random_floats(std::size_t(is_gathered ? rows_ / k : rows_) * K, 1), dtype),
        w_(random_floats(std::size_t(E) * step(), 2), dtype) {}

  template <class Run>
  Guarded run(Run product) {
    Guarded y(std::size_t(rows_) * N_, dtype_);
    product(ExpertProductArgs{.x = x_.data(),
                              .w = w_.data(),
                              .y = y.data(),
                              .pairs = is_gathered_ ? sorted_.pairs.data() : nullptr,
                              .first = sorted_.first.data(),
                              .rows = rows_,
                              .k = k_,
                              .E = E_,
                              .N = N_,
                              .K = K_,
                              .w_step = step(),
                              .dtype = dtype_,
                              .out_dtype = dtype_});
    return y;
  }
  Guarded on_gpu() {
    return run(
        [](const ExpertProductArgs& args) { expect_done(expert_product_cuda(args, nullptr)); });
  }
  /// Row p of y by a product of that row alone.
  std::vector<std::byte> alone(std::int32_t p) {
    const auto expert = std::ranges::upper_bound(sorted_.first, p) - sorted_.first.begin() - 1;
    const std::size_t row = is_gathered_ ? sorted_.pairs[p] / k_ : p;
    Guarded y(N_, dtype_);
    expect_done(row_product_cuda({.x = x_.data() + row * K_ * bytes_of(dtype_),
                                  .w = w_.data() + std::size_t(expert) * step() * bytes_of(dtype_),
                                  .y = y.data(),
                                  .T = 1,
                                  .N = N_,
                                  .K = K_,
                                  .dtype = dtype_,
                                  .out_dtype = dtype_},
                                 nullptr));
    return y.slice(0, N_);
  }
  std::int32_t rows() const { return rows_; }

 private:
  /// Experts lie apart by more than their matrix.
  std::int64_t step() const { return (std::int64_t{N_} * K_ + 39) / 8 * 8; }

  std::int32_t E_, k_, N_, K_, rows_;
  Dtype dtype_;
  bool is_gathered_;
  Sorted sorted_;
  Guarded x_, w_;
};

TEST(ExpertProductCuda, GivesEachRowTheBitsOfItsExpertsProduct) {
  struct Shape {
    std::int32_t T, E, k, N, K;
  };
  for (const auto& [T, E, k, N, K] : {Shape{1, 6, 2, 24, 16}, Shape{9, 40, 4, 33, 72},
                                      Shape{40, 3, 2, 64, 136}, Shape{150, 2, 1, 72, 64}})
    for (const Dtype dtype : kActivations)
      for (const bool is_gathered : {false, true}) {
        ExpertProduct product(E, k, N, K, random_experts(T, E, k), dtype, is_gathered);
        const Guarded want = product.run(expert_product_reference), got = product.on_gpu();
        EXPECT_TRUE(got.is_tail_intact());
        // The reference is rounded, too.
        const double rounding = dtype == Dtype::bf16  ? 0x1p-7
                                : dtype == Dtype::f16 ? 0x1p-10
                                                      : 2e-6;
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i], rounding * (std::fabs(want[i]) + std::sqrt(K)));
        for (std::int32_t p = 0; p < product.rows(); p += 1 + p / 4)
          EXPECT_EQ(got.slice(std::size_t(p) * N, N), product.alone(p)) << T << ", " << p;
        in_every_schedule([&] { EXPECT_TRUE(product.on_gpu() == got); });
      }
}

TEST(ExpertProductCuda, TakesExpertsWithoutTokensAndAllTokensOfOne) {
  for (const std::int32_t only : {0, 3, 6}) {
    ExpertProduct product(7, 1, 40, 64, Numbers(70, only), Dtype::bf16, true);
    const Guarded got = product.on_gpu();
    for (const std::int32_t p : {0, 31, 69})
      EXPECT_EQ(got.slice(std::size_t(p) * 40, 40), product.alone(p));
  }
}

TEST(MixExpertsCuda, AddsATokensResultsInTheOrderOfItsExperts) {
  constexpr std::int32_t T = 5, k = 3;
  const Sorted sorted = sort_pairs(random_experts(T, 9, k), 9, k, sort_by_expert_reference);
  const auto weights = random_floats(T * k, 3);
  for (const Dtype dtype : kActivations)
    for (const std::int32_t width : {4, 72, 1028})
      for (const auto& [adds, is_weighted] :
           {std::pair{false, true}, {true, true}, {true, false}}) {
        Guarded y(random_floats(std::size_t(T) * k * width, 1), dtype);
        const auto run = [&](auto mix) {
          Guarded out(random_floats(std::size_t(T) * width, 2), Dtype::f32);
          mix(MixExpertsArgs{.y = y.data(),
                             .weights = is_weighted ? weights.data() : nullptr,
                             .places = sorted.places.data(),
                             .out = out.as<float>(),
                             .T = T,
                             .k = k,
                             .width = width,
                             .adds_to_out = adds,
                             .dtype = dtype});
          return out;
        };
        const auto on_gpu = [&] {
          return run(
              [](const MixExpertsArgs& args) { expect_done(mix_experts_cuda(args, nullptr)); });
        };
        const Guarded want = run(mix_experts_reference), got = on_gpu();
        EXPECT_TRUE(got.is_tail_intact());
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5);
        in_every_schedule([&] { EXPECT_TRUE(on_gpu() == got); });
      }
}

#if !defined(KVHIVE_GPU_TESTS)
TEST(ExpertKernelsCuda, RefuseWhatTheyCannotDoAndStartNothing) {
  alignas(16) float memory[64] = {};
  std::int32_t numbers[64] = {};
  const std::uint64_t before = simt::statistics().blocks;
  const auto text = [](const Expected<void>& done) {
    return done ? std::string() : done.error().text;
  };
  using testing::HasSubstr;
  ChooseExpertsArgs choice{memory, numbers, memory, 1, 2000, 2};
  EXPECT_THAT(text(choose_experts_cuda(choice, nullptr)), HasSubstr("2 of 2000 experts; at most"));
  choice.E = 9, choice.groups = 2;
  EXPECT_THAT(text(choose_experts_cuda(choice, nullptr)), HasSubstr("1 of 2 groups"));
  choice.groups = 1, choice.k = 10;
  EXPECT_THAT(text(choose_experts_cuda(choice, nullptr)), HasSubstr("10 of 9 experts"));
  EXPECT_THAT(
      text(sort_by_expert_cuda({numbers, numbers, numbers, numbers, 1 << 23, 4, 3}, nullptr)),
      HasSubstr("8388608 tokens"));
  ExpertProductArgs product{
      .x = memory, .w = memory, .y = memory, .first = numbers, .rows = 1, .E = 1, .N = 4, .K = 12};
  EXPECT_THAT(text(expert_product_cuda(product, nullptr)), HasSubstr("12"));
  product.rows = 0, product.K = 8;
  EXPECT_EQ(text(expert_product_cuda(product, nullptr)), "");
  EXPECT_THAT(text(mix_experts_cuda({memory, memory, numbers, memory, 1, 1, 6}, nullptr)),
              HasSubstr("rows of 6"));
  EXPECT_EQ(simt::statistics().blocks, before);
}
#endif

}  // namespace
}  // namespace kvhive
