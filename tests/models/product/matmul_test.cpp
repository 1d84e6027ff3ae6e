#include "models/product/matmul.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>

#include "tests/emulated/arithmetic.hpp"
#include "tests/models/product/random_floats.hpp"

namespace kvhive {
namespace {

using testing_support::all_arithmetics, testing_support::Arithmetic, testing_support::ComputedBy;
using testing_support::name_of, testing_support::random_floats, testing_support::runs_here;

/// Values and how they are stored.
struct Stored {
  std::vector<float> values;
  std::vector<std::byte> bytes;
};

Stored store(const std::vector<float>& values, Dtype dtype) {
  Stored stored;
  for (const float value : values) {
    const std::uint16_t half = dtype == Dtype::bf16 ? bf16_of_float(value) : f16_of_float(value);
    const float kept = dtype == Dtype::f32    ? value
                       : dtype == Dtype::bf16 ? float_of_bf16(half)
                                              : float_of_f16(half);
    const auto* from = dtype == Dtype::f32 ? reinterpret_cast<const std::byte*>(&value)
                                           : reinterpret_cast<const std::byte*>(&half);
    stored.values.push_back(kept);
    stored.bytes.insert(stored.bytes.end(), from, from + bytes_of(dtype));
  }
  return stored;
}

struct Shape {
  Dtype dtype;
  std::int32_t N;
  std::int32_t K;
};

using Case = std::tuple<Arithmetic, Shape>;

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const Shape& shape = std::get<Shape>(info.param);
  return name_of(std::get<Arithmetic>(info.param)) + "_" + std::string(to_string(shape.dtype)) +
         "_" + std::to_string(shape.N) + "x" + std::to_string(shape.K);
}

class MatmulOf : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!runs_here(arithmetic_)) GTEST_SKIP() << "this machine has no " << name_of(arithmetic_);
    computed_by_.emplace(arithmetic_);
  }

  const Arithmetic arithmetic_ = std::get<Arithmetic>(GetParam());
  const Shape shape_ = std::get<Shape>(GetParam());
  std::optional<ComputedBy> computed_by_;
  // More than a block of rows of any kernel; emulated, which takes long, more than few rows.
  const std::int32_t rows_ = arithmetic_.is_emulated ? 99 : 300;
  const std::int32_t N_ = shape_.N;
  const std::int32_t K_ = shape_.K;
  const Stored weights_ = store(random_floats(std::size_t(N_) * K_, 1), shape_.dtype);
  const std::vector<float> bias_ = random_floats(N_, 2);
  const std::vector<float> x_ = random_floats(std::size_t(rows_) * K_, 3);
  const Matmul matmul_{{shape_.dtype, N_, K_, weights_.bytes}, bias_};

  std::vector<float> apply(std::span<const float> x) const {
    std::vector<float> y(x.size() / K_ * N_);
    matmul_.apply(x, y);
    return y;
  }
};

TEST_P(MatmulOf, MatchesDoubleSums) {
  const auto y = apply(x_);
  // Rounding of f32 sums grows with sqrt(K); products of bf16 inputs are exact in f32.
  const double tolerance = 4e-6 * std::sqrt(K_);
  for (std::int32_t row = 0; row < rows_; row += 37)
    for (std::int32_t n = 0; n < N_; ++n) {
      double sum = bias_[n];
      for (std::int32_t k = 0; k < K_; ++k) {
        const float x = x_[row * K_ + k];
        const float rounded = shape_.dtype == Dtype::bf16 ? float_of_bf16(bf16_of_float(x)) : x;
        sum += double{rounded} * weights_.values[n * K_ + k];
      }
      ASSERT_NEAR(y[row * N_ + n], sum, tolerance) << "row " << row << " column " << n;
    }
}

TEST_P(MatmulOf, ARowsBitsDependOnNothingElse) {
  const auto all = apply(x_);
  for (const std::int32_t first : {0, 1, 15, 16, 63, 200})
    for (const std::int32_t count : {1, 2, 5, 8, 9, 16, 17, 40, 64, 65, 100}) {
      if (first + count > rows_) continue;
      const auto part = apply(std::span(x_).subspan(first * K_, count * K_));
      ASSERT_EQ(std::memcmp(part.data(), &all[first * N_], part.size() * sizeof(float)), 0)
          << count << " rows from " << first;
    }
}

TEST_P(MatmulOf, ThreadsDoNotChangeBits) {
  const int before = omp_get_max_threads();
  const auto many = apply(x_);
  omp_set_num_threads(1);
  const auto one = apply(x_);
  omp_set_num_threads(3);
  const auto three = apply(x_);
  omp_set_num_threads(before);
  EXPECT_EQ(one, many);
  EXPECT_EQ(three, many);
}

TEST_P(MatmulOf, PaddingAndNaNNeighboursStayOut) {
  auto x = std::vector<float>(x_.begin(), x_.begin() + 3 * K_);
  const auto clean = apply(x);
  std::fill_n(x.begin() + K_, K_, std::nanf(""));
  const auto dirty = apply(x);
  EXPECT_TRUE(std::equal(clean.begin(), clean.begin() + N_, dirty.begin()));
  EXPECT_TRUE(std::equal(clean.begin() + 2 * N_, clean.end(), dirty.begin() + 2 * N_));
  EXPECT_TRUE(std::isnan(dirty[N_]));
}

// Odd sizes, sizes next to those of tasks, a small model's sizes, sizes large enough for threads,
// and K over more than one block.
INSTANTIATE_TEST_SUITE_P(
    Shapes, MatmulOf,
    testing::Combine(testing::ValuesIn(all_arithmetics()),
                     testing::Values(Shape{Dtype::f32, 1, 1}, Shape{Dtype::f32, 7, 33},
                                     Shape{Dtype::f32, 257, 48}, Shape{Dtype::f32, 512, 64},
                                     Shape{Dtype::bf16, 1, 1}, Shape{Dtype::bf16, 3, 5},
                                     Shape{Dtype::bf16, 255, 31}, Shape{Dtype::bf16, 300, 256},
                                     Shape{Dtype::bf16, 96, 768}, Shape{Dtype::f16, 40, 24},
                                     Shape{Dtype::bf16, 700, 320}, Shape{Dtype::f32, 520, 420},
                                     Shape{Dtype::f16, 37, 2085}, Shape{Dtype::bf16, 37, 2085})),
    name_of_case);

TEST(Matmul, TakesNoRows) {
  const auto weights = store(random_floats(6, 1), Dtype::f32);
  const Matmul matmul({Dtype::f32, 2, 3, weights.bytes}, {});
  matmul.apply({}, {});
}

/// Products of one x by matrices of several sizes and types, side by side: those of each alone.
TEST(Matmul, ProductsOfOneXAreThoseOfEachAlone) {
  constexpr std::int32_t kK = 2085;
  struct Matrix {
    Dtype dtype;
    std::int32_t N;
  };
  for (const auto& matrices : {std::vector<Matrix>{{Dtype::bf16, 300}, {Dtype::bf16, 1}},
                               {{Dtype::bf16, 300}, {Dtype::bf16, 40}, {Dtype::bf16, 33}},
                               {{Dtype::bf16, 90}, {Dtype::f16, 40}, {Dtype::f16, 300}},
                               {{Dtype::f32, 7}, {Dtype::f32, 90}, {Dtype::bf16, 40}}}) {
    std::vector<Stored> stored;
    std::vector<Matmul> matmuls;
    for (const auto& [dtype, N] : matrices)
      stored.push_back(store(random_floats(std::size_t(N) * kK, stored.size()), dtype));
    for (std::size_t i = 0; i < matrices.size(); ++i)
      matmuls.emplace_back(
          MatmulWeights{matrices[i].dtype, matrices[i].N, kK, stored[i].bytes},
          i == 1 ? random_floats(std::size_t(matrices[i].N), 9) : std::vector<float>{});
    for (const Arithmetic& arithmetic : all_arithmetics()) {
      if (!runs_here(arithmetic)) continue;
      const ComputedBy computed_by(arithmetic);
      for (const std::size_t rows : {std::size_t{1}, std::size_t{18}, std::size_t{70}}) {
        const auto x = random_floats(rows * kK, 7);
        std::vector<std::vector<float>> alone, together;
        std::vector<Matmul::Output> outputs;
        for (const auto& [dtype, N] : matrices) {
          alone.emplace_back(rows * std::size_t(N));
          together.emplace_back(rows * std::size_t(N));
        }
        for (std::size_t i = 0; i < matrices.size(); ++i) {
          matmuls[i].apply(x, alone[i]);
          outputs.push_back({&matmuls[i], together[i]});
        }
        Matmul::apply_all(x, outputs);
        EXPECT_EQ(together, alone) << name_of(arithmetic) << ", rows " << rows;
      }
    }
  }
}

/// Weights that begin at any byte, for few and for many rows.
TEST(Matmul, UnalignedWeightsAreReadInPlace) {
  for (const Arithmetic& arithmetic : all_arithmetics()) {
    if (!runs_here(arithmetic)) continue;
    const ComputedBy computed_by(arithmetic);
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
      for (const std::size_t rows : {std::size_t{5}, std::size_t{70}}) {
        const auto weights = store(random_floats(40 * 64, 1), dtype);
        std::vector<std::byte> shifted(weights.bytes.size() + 1);
        std::ranges::copy(weights.bytes, shifted.begin() + 1);
        const auto x = random_floats(rows * 64, 2);
        std::vector<float> straight(rows * 40), odd(rows * 40);
        Matmul({dtype, 40, 64, weights.bytes}, {}).apply(x, straight);
        Matmul({dtype, 40, 64, std::span(shifted).subspan(1)}, {}).apply(x, odd);
        EXPECT_EQ(odd, straight) << name_of(arithmetic);
      }
  }
}

std::vector<float> times(float factor, std::vector<float> values) {
  for (float& value : values) value *= factor;
  return values;
}

/// Emulated kernels give what those of the hardware give, and multiplications what dot products
/// give, where products or their sums are denormals, too.
class MatmulOfSize : public testing::TestWithParam<float> {};
TEST_P(MatmulOfSize, HasTheSameBitsEmulatedAndMultiplied) {
  const auto weights = store(times(GetParam(), random_floats(77 * 2100, 1)), Dtype::bf16);
  const auto x = times(GetParam(), random_floats(90 * 2100, 2));
  const auto bias = times(GetParam() * GetParam(), random_floats(77, 3));
  const Matmul matmul({Dtype::bf16, 77, 2100, weights.bytes}, bias);
  for (const CpuKernels kernels : {CpuKernels::avx512_bf16, CpuKernels::amx})
    for (const std::size_t rows : {std::size_t{3}, std::size_t{20}, std::size_t{90}}) {
      if (!runs_here({kernels})) continue;
      std::vector<float> expected;
      for (const Arithmetic& arithmetic : all_arithmetics()) {
        if (arithmetic.kernels != kernels) continue;
        const ComputedBy computed_by(arithmetic);
        std::vector<float> y(rows * 77);
        matmul.apply(std::span(x).first(rows * 2100), y);
        if (expected.empty()) expected = y;
        EXPECT_EQ(y, expected) << name_of(arithmetic) << ", rows " << rows;
      }
    }
}
INSTANTIATE_TEST_SUITE_P(Sizes, MatmulOfSize, testing::Values(1.0f, 1e-18f, 1e-19f));

TEST(Matmul, MovingKeepsOwnedWeights) {
  auto weights = store(random_floats(8 * 8, 1), Dtype::f16);
  const auto x = random_floats(8, 2);
  std::vector<float> before(8), after(8);
  Matmul first({Dtype::f16, 8, 8, {}}, std::move(weights.bytes), {});
  first.apply(x, before);
  const Matmul second = std::move(first);
  second.apply(x, after);
  EXPECT_EQ(after, before);
  EXPECT_EQ(second.owned_bytes(), 128u);
}

}  // namespace
}  // namespace kvhive
