#include "config/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvhive {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Dtype, HasVllmsNames) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(parse_dtype("half"), Dtype::f16);
  EXPECT_EQ(parse_dtype("float"), Dtype::f32);
  EXPECT_EQ(parse_dtype("int8"), std::nullopt);
  EXPECT_EQ(kv_dtype(KvCacheDtype::fp8, Dtype::bf16), Dtype::e4m3);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_dtype("BFLOAT16"), std::nullopt);
}

TEST(Dtype, HasItsSize) {
  EXPECT_EQ(bytes_of(Dtype::f32), 4u);
  EXPECT_EQ(bytes_of(Dtype::bf16), 2u);
  EXPECT_EQ(bytes_of(Dtype::f16), 2u);
}

/// One of the two 16-bit formats.
struct Format {
  const char* name;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  std::uint16_t infinity;
};

class NarrowFloat : public ::testing::TestWithParam<Format> {
 protected:
  float widen(std::uint32_t bits) const { return GetParam().widen(std::uint16_t(bits)); }
  std::uint16_t narrow(float value) const { return GetParam().narrow(value); }
  std::uint32_t infinity() const { return GetParam().infinity; }
};

TEST_P(NarrowFloat, EveryValueIsTheSameAfterWideningAndNarrowing) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) > infinity()) continue;  // NaN
    ASSERT_EQ(narrow(widen(bits)), bits);
  }
}

TEST_P(NarrowFloat, EveryNanStaysNan) {
  for (const std::uint32_t sign : {0u, 0x8000u}) {
    for (std::uint32_t bits = infinity() + 1; bits < 0x8000; ++bits) {
      ASSERT_TRUE(std::isnan(widen(sign | bits)));
      ASSERT_TRUE(std::isnan(widen(narrow(widen(sign | bits)))));
    }
  }
  // A NaN whose payload lies in the bits that are cut off.
  EXPECT_TRUE(std::isnan(widen(narrow(std::bit_cast<float>(0x7f800001u)))));
}

TEST_P(NarrowFloat, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits + 1 < infinity(); ++bits) {
    const float low = widen(bits), high = widen(bits + 1);
    const float middle = low + (high - low) / 2;  // exact: float has more bits
    ASSERT_EQ(narrow(std::nextafter(middle, -kInfinity)), bits);
    ASSERT_EQ(narrow(std::nextafter(middle, kInfinity)), bits + 1);
    ASSERT_EQ(narrow(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(narrow(-middle), 0x8000u | (bits % 2 == 0 ? bits : bits + 1));
  }
}

TEST_P(NarrowFloat, OverflowsToInfinityFromHalfwayOn) {
  const float largest = widen(infinity() - 1);
  const float step = largest - widen(infinity() - 2);
  const float halfway = largest + step / 2;
  EXPECT_EQ(narrow(std::nextafter(halfway, 0.0f)), infinity() - 1);
  EXPECT_EQ(narrow(halfway), infinity());
  EXPECT_EQ(narrow(kInfinity), infinity());
  EXPECT_EQ(narrow(-kInfinity), 0x8000u | infinity());
}

TEST_P(NarrowFloat, KeepsTheSignOfZeroAndOfUnderflow) {
  EXPECT_EQ(narrow(0.0f), 0u);
  EXPECT_EQ(narrow(-0.0f), 0x8000u);
  EXPECT_EQ(narrow(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(narrow(-std::numeric_limits<float>::denorm_min()), 0x8000u);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowFloat,
                         ::testing::Values(Format{"bf16", float_of_bf16, bf16_of_float, 0x7f80},
                                           Format{"f16", float_of_f16, f16_of_float, 0x7c00}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Dtype, KnownValuesHaveTheirBits) {
  EXPECT_EQ(bf16_of_float(1.0f), 0x3f80);
  EXPECT_EQ(f16_of_float(1.0f), 0x3c00);
  EXPECT_EQ(f16_of_float(65504.0f), 0x7bff);
  EXPECT_EQ(f16_of_float(0x1p-24f), 0x0001);
  EXPECT_EQ(float_of_f16(0xc000), -2.0f);
  EXPECT_EQ(float_of_bf16(0xc000), -2.0f);
}

}  // namespace
}  // namespace kvhive
