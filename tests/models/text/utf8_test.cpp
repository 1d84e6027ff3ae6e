#include "models/text/utf8.hpp"

#include <gtest/gtest.h>

#include "models/text/byte_alphabet.hpp"

namespace kvhive {
namespace {

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const auto text = utf8_of(c);
    const auto head = utf8_head(text);
    ASSERT_EQ(head.kind, Utf8Head::Kind::character) << std::uint32_t{c};
    ASSERT_EQ(head.code_point, c);
    ASSERT_EQ(head.bytes, text.size());
  }
}

TEST(Utf8, NamesTheFirstInvalidByte) {
  EXPECT_EQ(first_invalid_utf8("grüße 🙂"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(first_invalid_utf8("ab\xc3"), 2u);            // cut short
  EXPECT_EQ(first_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(first_invalid_utf8("a\xed\xa0\x80"), 1u);     // surrogate
  EXPECT_EQ(first_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(first_invalid_utf8("\xe2\x82\x28"), 0u);
  EXPECT_EQ(first_invalid_utf8("\x80"), 0u);
}

TEST(Utf8Stream, PiecesDoNotDependOnTheCut) {
  const std::string bytes =
      "a\xf0\x9f\x99\x82z\xff\xe2\x82"
      "b\xc3\xa9\xf0\x9f";
  Utf8Stream whole;
  auto all = whole.push(bytes);
  all += whole.finish();
  EXPECT_EQ(all,
            "a🙂z\xEF\xBF\xBD\xEF\xBF\xBD"
            "bé\xEF\xBF\xBD");
  for (std::size_t step = 1; step < bytes.size(); ++step) {
    Utf8Stream stream;
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const auto piece = stream.push(std::string_view(bytes).substr(at, step));
      EXPECT_EQ(first_invalid_utf8(piece), std::nullopt);
      text += piece;
    }
    EXPECT_EQ(text + stream.finish(), all);
  }
}

TEST(ByteAlphabet, SpellsBytesAsGpt2Does) {
  EXPECT_EQ(bytes_of_spelling("Ġthe"), " the");
  EXPECT_EQ(bytes_of_spelling("Ċ"), "\n");
  EXPECT_EQ(bytes_of_spelling("Ã©"), "é");
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("字"), std::nullopt);
}

}  // namespace
}  // namespace kvhive
