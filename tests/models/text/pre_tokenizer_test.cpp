#include "models/text/pre_tokenizer.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(const nlohmann::json& form, const std::string& text, Place place = Place::start) {
  return PreTokenizer::parse(form, "p").value().cut(text, place).value();
}

nlohmann::json split(const std::string& regex, const char* behavior = "Isolated",
                     bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", behavior},
          {"invert", invert}};
}

const std::string kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(PreTokenizer, NullIsOnePiece) {
  EXPECT_EQ(cut(nullptr, "a b"), Pieces{"a b"});
  EXPECT_TRUE(cut(nullptr, "").empty());
}

TEST(PreTokenizer, SplitsAsLlama3Does) {
  EXPECT_EQ(
      cut(split(kLlama3), "I'LL pay 12345 €\n\n  twice  now "),
      (Pieces{"I", "'LL", " pay", " ", "123", "45", " €\n\n", " ", " twice", " ", " now", " "}));
  EXPECT_EQ(cut(split(kLlama3), "漢字 \u00a0ñandú"), (Pieces{"漢字", " ", "\u00a0ñandú"}));
}

TEST(PreTokenizer, IsolatedKeepsTheTextBetweenMatches) {
  EXPECT_EQ(cut(split(R"(\d)"), "ab1c22"), (Pieces{"ab", "1", "c", "2", "2"}));
}

TEST(PreTokenizer, EmptyMatchesCut) {
  EXPECT_EQ(cut(split("x*"), "axxb"), (Pieces{"a", "xx", "b"}));
  EXPECT_EQ(cut(split("x*"), "é字"), (Pieces{"é", "字"}));
  EXPECT_EQ(cut(split("(?=[A-Z])"), "CamelCase"), (Pieces{"Camel", "Case"}));
}

TEST(PreTokenizer, RemovedInvertedKeepsMatchesOnly) {
  EXPECT_EQ(cut(split(R"(\d+)", "Removed", true), "ab1c22"), (Pieces{"1", "22"}));
}

TEST(PreTokenizer, LiteralPatternsAreNotRegexes) {
  EXPECT_EQ(
      cut({{"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", "Isolated"}}, "a.b"),
      (Pieces{"a", ".", "b"}));
}

TEST(PreTokenizer, ByteLevelSplitsAsGpt2Does) {
  const nlohmann::json plain{{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_EQ(cut(plain, "it's 42  ok"), (Pieces{"it", "'s", " 42", " ", " ok"}));
  EXPECT_EQ(cut({{"type", "ByteLevel"}}, "hi"), Pieces{" hi"});
  EXPECT_EQ(cut({{"type", "ByteLevel"}}, " hi"), Pieces{" hi"});
  EXPECT_EQ(cut({{"type", "ByteLevel"}, {"use_regex", false}, {"add_prefix_space", false}}, "a b"),
            Pieces{"a b"});
}

TEST(PreTokenizer, DigitsStandAlone) {
  EXPECT_EQ(cut({{"type", "Digits"}, {"individual_digits", true}}, "a12b"),
            (Pieces{"a", "1", "2", "b"}));
  EXPECT_EQ(cut({{"type", "Digits"}}, "a12b"), (Pieces{"a", "12", "b"}));
}

TEST(PreTokenizer, MetaspaceMarksSpaces) {
  const auto metaspace = [](const char* scheme, bool split_words) {
    return nlohmann::json{{"type", "Metaspace"},
                          {"replacement", "▁"},
                          {"prepend_scheme", scheme},
                          {"split", split_words}};
  };
  EXPECT_EQ(cut(metaspace("first", false), "a b"), Pieces{"▁a▁b"});
  EXPECT_EQ(cut(metaspace("first", false), "a b", Place::later), Pieces{"a▁b"});
  EXPECT_EQ(cut(metaspace("always", true), "a  b", Place::later), (Pieces{"▁a", "▁", "▁b"}));
  EXPECT_EQ(cut(metaspace("never", true), "a b"), (Pieces{"a", "▁b"}));
  EXPECT_EQ(cut(metaspace("always", false), " a"), Pieces{"▁a"});
}

TEST(PreTokenizer, LongTextsNeitherOverflowNorTakeQuadraticTime) {
  for (const char* unit : {"a", " ", "\n", "1", "!", "漢", "é "}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    std::string joined;
    for (const auto& piece : cut(split(kLlama3), text)) joined += piece;
    EXPECT_EQ(joined, text);
  }
}

TEST(PreTokenizer, RunawayPatternsAreAnError) {
  const auto parsed = PreTokenizer::parse(split("(a+)+$"), "p").value();
  const auto pieces = parsed.cut(std::string(100, 'a') + "b", Place::start);
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.error().code, Errc::unsupported);
  EXPECT_NE(pieces.error().text.find("match limit"), std::string::npos) << pieces.error().text;
}

TEST(PreTokenizer, SixteenMegabytesOfOneCharacterMeetNoLimit) {
  const auto parsed = PreTokenizer::parse(split(kLlama3), "p").value();
  for (const char c : {' ', '\n', 'a', '!'}) {
    const auto pieces = parsed.cut(std::string(16 << 20, c), Place::start);
    ASSERT_TRUE(pieces) << c << pieces.error().text;
    EXPECT_EQ(pieces->size(), 1u) << c;
  }
}

TEST(PreTokenizer, AMatchMayEndTheTextBeforeIt) {
  const nlohmann::json step{{"type", "Split"},
                            {"pattern", {{"String", "-"}}},
                            {"behavior", "MergedWithPrevious"},
                            {"invert", false}};
  EXPECT_EQ(cut(step, "the-final--countdown"), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(cut(step, "--a-"), (Pieces{"-", "-", "a-"}));
  EXPECT_EQ(cut(step, "a"), Pieces{"a"});
}

TEST(PreTokenizer, UnknownKindsAreRefused) {
  for (const auto& form :
       {nlohmann::json{{"type", "Whitespace"}}, split("x", "MergedWithNext"), split("x", "Removed"),
        split("x", "MergedWithPrevious"), split("(unclosed"), nlohmann::json{{"type", "Metaspace"}},
        nlohmann::json(3)})
    EXPECT_FALSE(PreTokenizer::parse(form, "p")) << form;
}

}  // namespace
}  // namespace kvhive
