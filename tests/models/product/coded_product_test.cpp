// Products with weights in codes: in every arithmetic, those with the values that the codes stand
// for.

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "models/product/matmul.hpp"
#include "models/quantization/coded_rows.hpp"
#include "tests/emulated/arithmetic.hpp"
#include "tests/models/product/random_floats.hpp"
#include "tests/models/quantization/random_codes.hpp"

namespace kvhive {
namespace {

using testing_support::all_arithmetics, testing_support::Arithmetic, testing_support::ComputedBy;
using testing_support::every_form, testing_support::Form, testing_support::RandomCodes;
using testing_support::name_of, testing_support::random_floats, testing_support::runs_here;

class CodedProduct : public testing::TestWithParam<Form> {
 protected:
  /// With each number of rows, the bits of both products.
  void expect_equal(std::int32_t N, std::int32_t K, Dtype values,
                    std::initializer_list<std::size_t> rows, const std::string& what) {
    const RandomCodes codes(GetParam(), N, K);
    const auto bias = random_floats(N, 2);
    const Matmul coded(codes.matrix, values, bias);
    const Matmul plain({values, N, K, {}}, values_of(codes.matrix, values), bias);
    for (const std::size_t count : rows) {
      const auto x = random_floats(count * K, 3);
      std::vector<float> got(count * N), want(count * N);
      coded.apply(x, got);
      plain.apply(x, want);
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
          << what << ": " << count << " rows, " << N << " x " << K;
    }
  }
};

TEST_P(CodedProduct, HasTheBitsOfItsValuesInEveryArithmetic) {
  for (const Arithmetic& arithmetic : all_arithmetics()) {
    if (!runs_here(arithmetic)) continue;
    const ComputedBy computed_by(arithmetic);
    for (const auto& [N, K] : GetParam().sizes())
      for (const Dtype values : {Dtype::bf16, Dtype::f32})
        expect_equal(N, K, values, {1, 3, 17, 70}, name_of(arithmetic));
  }
}

/// Several tasks and threads, pieces of a task, and more than one block of columns.
TEST_P(CodedProduct, HasTheBitsOfItsValuesWhereItIsCut) {
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    for (const Dtype values : {Dtype::bf16, Dtype::f32}) {
      expect_equal(600, 2560, values, {1, 4, 40}, std::to_string(threads) + " threads");
      expect_equal(40, 16384, values, {2, 20}, std::to_string(threads) + " threads");
    }
  }
  omp_set_num_threads(before);
}

/// Beside products of the same x by other codes and by weights without codes.
TEST_P(CodedProduct, HasTheBitsOfItsValuesBesideOthers) {
  constexpr std::int32_t kN = 96, kK = 2560;
  const RandomCodes codes(GetParam(), kN, kK), few(GetParam(), 24, kK);
  const Matmul coded(codes.matrix, Dtype::bf16, {}), narrow(few.matrix, Dtype::bf16, {});
  const Matmul plain({Dtype::bf16, kN, kK, {}}, values_of(codes.matrix, Dtype::bf16), {});
  for (const Arithmetic& arithmetic : all_arithmetics()) {
    if (!runs_here(arithmetic)) continue;
    const ComputedBy computed_by(arithmetic);
    for (const std::size_t rows : {std::size_t{2}, std::size_t{20}}) {
      const auto x = random_floats(rows * kK, 3);
      std::vector<float> first(rows * kN), second(rows * 24), third(rows * kN);
      std::vector<float> wide(rows * kN), thin(rows * 24);
      const Matmul::Output outputs[] = {{&coded, first}, {&narrow, second}, {&plain, third}};
      Matmul::apply_all(x, outputs);
      plain.apply(x, wide);
      narrow.apply(x, thin);
      EXPECT_EQ(first, wide) << name_of(arithmetic) << ", rows " << rows;
      EXPECT_EQ(second, thin) << name_of(arithmetic) << ", rows " << rows;
      EXPECT_EQ(third, wide) << name_of(arithmetic) << ", rows " << rows;
    }
  }
}

/// Values that are denormals, or become infinite: computed row by row as many rows are.
TEST_P(CodedProduct, HasTheBitsOfItsValuesWhereTheseAreExtreme) {
  for (const float scale : {1e-38f, 3e-38f, 1e-37f, 1e-36f, 1e37f}) {
    RandomCodes codes(GetParam(), 72, GetParam().is_reordered ? 160 : 128);
    for (float& each : codes.matrix.grid.scales) each *= scale;
    const Matmul coded(codes.matrix, Dtype::bf16, {});
    const Matmul plain({Dtype::bf16, codes.matrix.N, codes.matrix.K, {}},
                       values_of(codes.matrix, Dtype::bf16), {});
    auto x = random_floats(2 * codes.matrix.K, 3);
    if (scale < 1)
      for (float& value : x) value *= 1e30f;  // a denormal weight counts, if it is not 0
    std::vector<float> got(2 * codes.matrix.N), want(got.size());
    coded.apply(x, got);
    plain.apply(x, want);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
          << got[i] << " " << want[i] << ", scale " << scale;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CodedProduct, testing::ValuesIn(every_form()),
                         [](const auto& test) { return test.param.name; });

TEST(CodedProductOf, OwnsItsScalesAndNotItsCodes) {
  const RandomCodes codes({"", CodeKind::uint4, CodeOrder::gptq, 32, true}, 16, 64);
  const Matmul matmul(codes.matrix, Dtype::bf16, {});
  EXPECT_EQ(matmul.owned_bytes(), 16u * 2 * (4 + 1));
}

}  // namespace
}  // namespace kvhive
