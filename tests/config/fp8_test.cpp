#include "config/fp8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvhive {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  int finite_codes;  ///< finite codes of one sign
  float largest;
  float (*widen)(std::uint8_t);
  std::uint8_t (*narrow)(float);
};

/// A code's value by the format's definition: exponent and mantissa.
double value_of(const Format& format, int code) {
  const int exponent = code >> format.mantissa_bits;
  const double fraction =
      std::ldexp(code & ((1 << format.mantissa_bits) - 1), -format.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                       : std::ldexp(1 + fraction, exponent - format.bias);
}

class Fp8 : public testing::TestWithParam<Format> {};

TEST_P(Fp8, EveryCodeHasItsValueAndIsTheSameAfterNarrowing) {
  for (int code = 0; code < GetParam().finite_codes; ++code) {
    ASSERT_EQ(GetParam().widen(std::uint8_t(code)), value_of(GetParam(), code));
    ASSERT_EQ(GetParam().widen(std::uint8_t(code | 0x80)), -value_of(GetParam(), code));
    for (const int sign : {0, 0x80})
      ASSERT_EQ(GetParam().narrow(GetParam().widen(std::uint8_t(code | sign))), code | sign);
  }
  EXPECT_EQ(value_of(GetParam(), GetParam().finite_codes - 1), GetParam().largest);
}

TEST_P(Fp8, EveryTieGoesToEvenAndItsNeighboursToTheNearest) {
  for (int code = 0; code + 1 < GetParam().finite_codes; ++code) {
    const auto tie =
        static_cast<float>((value_of(GetParam(), code) + value_of(GetParam(), code + 1)) / 2);
    const float below = std::nextafter(tie, 0.0f), above = std::nextafter(tie, kInfinity);
    for (const int sign : {0, 0x80}) {
      const float factor = sign ? -1.0f : 1.0f;
      ASSERT_EQ(GetParam().narrow(factor * tie), (code % 2 ? code + 1 : code) | sign);
      ASSERT_EQ(GetParam().narrow(factor * below), code | sign);
      ASSERT_EQ(GetParam().narrow(factor * above), (code + 1) | sign);
    }
  }
}

TEST_P(Fp8, SaturatesValuesThatAreTooLarge) {
  const int last = GetParam().finite_codes - 1;
  for (const float large :
       {std::nextafter(GetParam().largest, kInfinity), GetParam().largest * 1.2f,
        GetParam().largest * 2, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(GetParam().narrow(large), last);
    EXPECT_EQ(GetParam().narrow(-large), last | 0x80);
  }
}

TEST_P(Fp8, RoundsTheSmallestValuesToZeroOfTheirSign) {
  EXPECT_EQ(GetParam().narrow(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(GetParam().narrow(-std::numeric_limits<float>::min()), 0x80);
  EXPECT_EQ(GetParam().narrow(-0.0f), 0x80);
}

TEST_P(Fp8, NanStaysNan) {
  EXPECT_EQ(GetParam().narrow(kNan), 0x7f);
  EXPECT_EQ(GetParam().narrow(-kNan), 0x7f);
  EXPECT_EQ(GetParam().narrow(std::bit_cast<float>(0x7f800001u)), 0x7f);
  EXPECT_TRUE(std::isnan(GetParam().widen(0x7f)));
  EXPECT_TRUE(std::isnan(GetParam().widen(0xff)));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Fp8,
    testing::Values(Format{"e4m3", 3, 7, 0x7f, 448.0f, float_of_e4m3, e4m3_of_float},
                    Format{"e5m2", 2, 15, 0x7c, 57344.0f, float_of_e5m2, e5m2_of_float}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Fp8Infinity, OnlyE5m2HasCodesForIt) {
  EXPECT_EQ(float_of_e5m2(0x7c), kInfinity);
  EXPECT_EQ(float_of_e5m2(0xfc), -kInfinity);
}

TEST(Int8, RoundsToNearestWithTiesToEvenAndSaturates) {
  for (int value = -127; value <= 127; ++value) {
    ASSERT_EQ(int8_of_float(static_cast<float>(value)), value);
    if (value == 127) break;
    const float tie = static_cast<float>(value) + 0.5f;
    ASSERT_EQ(int8_of_float(tie), value % 2 == 0 ? value : value + 1);
    ASSERT_EQ(int8_of_float(std::nextafter(tie, -kInfinity)), value);
    ASSERT_EQ(int8_of_float(std::nextafter(tie, kInfinity)), value + 1);
  }
  for (const float large : {127.4f, 127.5f, 128.0f, 1e9f, kInfinity}) {
    EXPECT_EQ(int8_of_float(large), 127);
    EXPECT_EQ(int8_of_float(-large), -127);
  }
  EXPECT_EQ(int8_of_float(kNan), 0);
}

}  // namespace
}  // namespace kvhive
