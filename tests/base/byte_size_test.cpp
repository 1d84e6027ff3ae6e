#include "base/byte_size.hpp"

#include <gmock/gmock.h>

namespace kvhive {
namespace {

TEST(ParseBytes, TakesPlainNumbers) {
  EXPECT_EQ(parse_bytes("0").value(), 0u);
  EXPECT_EQ(parse_bytes("1073741824").value(), 1073741824u);
  EXPECT_EQ(parse_bytes("17b").value(), 17u);
}

TEST(ParseBytes, UnitsArePowersOf1024InAnySpelling) {
  for (const char* text : {"4G", "4g", "4GB", "4gb", "4GiB", "4 GiB", "4gib", " 4GiB" + 1})
    EXPECT_EQ(parse_bytes(text).value(), 4ull << 30) << text;
  EXPECT_EQ(parse_bytes("3k").value(), 3u << 10);
  EXPECT_EQ(parse_bytes("512M").value(), 512u << 20);
  EXPECT_EQ(parse_bytes("2TiB").value(), 2ull << 40);
}

TEST(ParseBytes, TakesFractions) {
  EXPECT_EQ(parse_bytes("1.5G").value(), 3ull << 29);
  EXPECT_EQ(parse_bytes("0.5k").value(), 512u);
}

TEST(ParseBytes, RefusesAWrongSizeNamingIt) {
  for (const char* text : {"", "G", "-1", "-1G", "4X", "4Gi", "4bb", "4GiBs", "four", "nan", "inf",
                           "1e30", "4611686018427387904", "5000000T", "4G4"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code, Errc::bad_argument);
    EXPECT_THAT(parsed.error().text, ::testing::HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(FormatBytes, ChoosesTheUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(5000ull << 40), "5000.00 TiB");
}

TEST(FormatBytes, IsParsedBackToWithinOnePercent) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1000}, std::size_t{123456789}, std::size_t{9} << 40}) {
    const auto again = static_cast<double>(parse_bytes(format_bytes(bytes)).value());
    EXPECT_NEAR(again, static_cast<double>(bytes), 0.01 * static_cast<double>(bytes));
  }
}

}  // namespace
}  // namespace kvhive
