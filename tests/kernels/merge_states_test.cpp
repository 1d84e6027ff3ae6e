#include "kernels/merge_states.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backends.hpp"
#include "kernels/element.hpp"
#include "kv_fixture.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class MergeStates : public testing::TestWithParam<Backend> {};

/// [T, H, D] of some type, and [T, H].
struct Part {
  Part(Dtype dtype_of, std::size_t rows, std::size_t D, std::uint32_t seed)
      : dtype(dtype_of), out(rows * D * bytes_of(dtype)) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < rows * D; ++i)
      store_element(out.data(), i, static_cast<float>(random() % 4096) / 1024.0f - 2.0f, dtype);
    for (std::size_t i = 0; i < rows; ++i)
      lse.push_back(static_cast<float>(random() % 4096) / 256.0f - 8.0f);
  }

  float at(std::size_t i) const { return load_element(out.data(), i, dtype); }

  Dtype dtype;
  std::vector<std::byte> out;
  std::vector<float> lse;
};

MergeStatesArgs args_of(const Part& a, const Part& b, Part& into, std::int32_t T, std::int32_t H,
                        std::int32_t D) {
  return {a.out.data(),
          b.out.data(),
          a.lse.data(),
          b.lse.data(),
          into.out.data(),
          into.lse.data(),
          T,
          H,
          D,
          a.dtype};
}

TEST_P(MergeStates, WeighsThePartsByTheirLse) {
  constexpr std::int32_t T = 7, H = 5, D = 72;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Part a(dtype, T * H, D, 1), b(dtype, T * H, D, 2);
    Part merged(dtype, T * H, D, 3);
    GetParam().merge(args_of(a, b, merged, T, H, D));
    std::vector<double> out, lse;
    std::vector<float> got;
    for (std::size_t row = 0; row < T * H; ++row) {
      const double wa = std::exp(double{a.lse[row]}), wb = std::exp(double{b.lse[row]});
      lse.push_back(std::log(wa + wb));
      for (std::size_t i = row * D; i < (row + 1) * D; ++i) {
        out.push_back((wa * a.at(i) + wb * b.at(i)) / (wa + wb));
        got.push_back(merged.at(i));
      }
    }
    EXPECT_LE(worst_relative_error(got, out, D), tolerance_of({.q_dtype = dtype}));
    EXPECT_LE(worst_error(merged.lse, lse), 1e-5);
  }
}

TEST_P(MergeStates, IgnoresTheValuesOfAnEmptyPart) {
  constexpr std::int32_t D = 16;
  const Part a(Dtype::f32, 3, D, 1);
  Part b(Dtype::f32, 3, D, 2), merged(Dtype::f32, 3, D, 3);
  for (std::size_t i = 0; i < 3 * D; ++i) store_element(b.out.data(), i, kNan, Dtype::f32);
  b.lse = {kNothing, kNothing, kNothing};
  for (const bool swapped : {false, true}) {
    GetParam().merge(swapped ? args_of(b, a, merged, 1, 3, D) : args_of(a, b, merged, 1, 3, D));
    EXPECT_EQ(merged.out, a.out);
    EXPECT_EQ(merged.lse, a.lse);
  }
}

TEST_P(MergeStates, OfTwoEmptyPartsIsZero) {
  constexpr std::int32_t D = 16;
  Part a(Dtype::bf16, 1, D, 1), merged(Dtype::bf16, 1, D, 3);
  for (std::size_t i = 0; i < D; ++i) store_element(a.out.data(), i, kNan, Dtype::bf16);
  a.lse = {kNothing};
  GetParam().merge(args_of(a, a, merged, 1, 1, D));
  EXPECT_EQ(merged.out, std::vector<std::byte>(2 * D));
  EXPECT_EQ(merged.lse[0], kNothing);
}

TEST_P(MergeStates, WorksInPlaceAndWithoutLse) {
  constexpr std::int32_t T = 3, H = 2, D = 24;
  const Part a(Dtype::f16, T * H, D, 1);
  Part b(Dtype::f16, T * H, D, 2), merged(Dtype::f16, T * H, D, 3);
  GetParam().merge(args_of(a, b, merged, T, H, D));
  Part in_place = a;
  MergeStatesArgs args = args_of(in_place, b, in_place, T, H, D);
  GetParam().merge(args);
  EXPECT_EQ(in_place.out, merged.out);
  EXPECT_EQ(in_place.lse, merged.lse);
  args = args_of(a, b, b, T, H, D);
  args.lse = nullptr;
  GetParam().merge(args);
  EXPECT_EQ(b.out, merged.out);
}

TEST_P(MergeStates, GivesAttentionOverTheWholeFromTwoHalves) {
  KvFixture fixture({.H = 2, .G = 2, .D = 64}, {{1, 200}});
  // The query at position 199 sees the first 104 tokens (as a query at position 103 with the same
  // vector does) and then the other 96, by a window.
  const Output first = fixture.run(GetParam().attention,
                                   {{.sequence = 0, .kv_len = 104, .q_len = 1, .q_from = 199}});
  const Output second = fixture.run(GetParam().attention, {{0, 200, 1}}, {.window = 96});
  const ExactOutput whole = fixture.run_densely({{0, 200, 1}});
  for (std::size_t row = 0; row < 2; ++row) {
    std::vector<float> merged(64);
    std::vector<float> lse(1);
    GetParam().merge({&first.out[row * 64], &second.out[row * 64], &first.lse[row],
                      &second.lse[row], merged.data(), lse.data(), 1, 1, 64, Dtype::f32});
    const std::vector<double> want(whole.out.begin() + row * 64, whole.out.begin() + row * 64 + 64);
    EXPECT_LE(worst_relative_error(merged, want, 64), 1e-5);
    EXPECT_LE(std::fabs(lse[0] - whole.lse[row]), 2e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MergeStates, testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
