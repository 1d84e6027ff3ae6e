#include "actors/scheduler/output_text.hpp"

#include <gtest/gtest.h>

#include "models/text/tokenizer_parser.hpp"
#include "tests/models/text/small_tokenizers.hpp"

namespace kvhive::testing {
namespace {

/// Token b < 256 is byte b; 256 is "he", 257 "ll", 258 "hell", 259 "hello", 262 a special token.
class OutputTextTest : public ::testing::Test {
 protected:
  OutputText with_stop(std::vector<std::string> stop) {
    return {&tokenizer_, {.texts = std::move(stop)}};
  }

  Tokenizer tokenizer_ = parse_tokenizer(small_byte_level(), "test").value();
};

/// Pushes bytes as tokens. Returns the text that came out, and whether a stop string ended it.
std::pair<std::string, bool> push_all(OutputText& text, std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    const auto piece = text.push(static_cast<unsigned char>(byte));
    out += piece.text;
    if (piece.stopped) return {out, true};
  }
  return {out, false};
}

TEST_F(OutputTextTest, WithoutStopStringsTextComesWithItsToken) {
  OutputText text = with_stop({});
  EXPECT_EQ(text.push(259).text, "hello");
  EXPECT_EQ(text.push('!').text, "!");
  EXPECT_EQ(text.bytes(), 6u);
  EXPECT_EQ(text.finish(), "");
}

TEST_F(OutputTextTest, ACharacterComesWithItsLastByte) {
  OutputText text = with_stop({});
  EXPECT_EQ(text.push(0xe2).text, "");
  EXPECT_EQ(text.push(0x82).text, "");
  EXPECT_EQ(text.push(0xac).text, "\xe2\x82\xac");
}

TEST_F(OutputTextTest, ACharacterCutShortEndsAsAReplacement) {
  OutputText text = with_stop({});
  EXPECT_EQ(text.push(0xe2).text, "");
  EXPECT_EQ(text.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(text.bytes(), 3u);
}

TEST_F(OutputTextTest, SpecialTokensHaveNoText) {
  OutputText text = with_stop({});
  EXPECT_EQ(text.push(262).text, "");
  EXPECT_EQ(text.push(259).text, "hello");
}

TEST_F(OutputTextTest, AStopStringInsideATokenCutsItThere) {
  OutputText text = with_stop({"ll"});
  const auto piece = text.push(259);
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "he");
  EXPECT_EQ(text.bytes(), 2u);
}

TEST_F(OutputTextTest, AStopStringAcrossTokensNeverShowsItsBeginning) {
  OutputText text = with_stop({"END"});
  EXPECT_EQ(push_all(text, "The E"), (std::pair<std::string, bool>{"The", false}));
  EXPECT_EQ(push_all(text, "N"), (std::pair<std::string, bool>{" ", false}));
  EXPECT_EQ(push_all(text, "D"), (std::pair<std::string, bool>{"", true}));
  EXPECT_EQ(text.bytes(), 4u);
}

TEST_F(OutputTextTest, TextThatOnlyBeginsLikeAStopStringIsReturned) {
  OutputText text = with_stop({"END"});
  std::string out = push_all(text, "ENTE").first;
  out += text.finish();
  EXPECT_EQ(out, "ENTE");
  EXPECT_EQ(text.bytes(), 4u);
}

TEST_F(OutputTextTest, AStopStringThatOverlapsItsOwnStartIsFound) {
  OutputText text = with_stop({"aab"});
  EXPECT_EQ(push_all(text, "aaab"), (std::pair<std::string, bool>{"a", true}));
}

TEST_F(OutputTextTest, TheFirstOfSeveralStopStringsCounts) {
  OutputText text = with_stop({"lo", "ell", "h!"});
  const auto piece = text.push(259);
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "h");
}

TEST_F(OutputTextTest, AStopStringOfOneByteHoldsNothingBack) {
  OutputText text = with_stop({"\n"});
  EXPECT_EQ(text.push(259).text, "hello");
  EXPECT_TRUE(text.push('\n').stopped);
}

TEST_F(OutputTextTest, TextIsHeldBackInWholeCharacters) {
  OutputText text = with_stop({"xyz"});
  // At least two bytes must be held back. Exactly two would cut the second character.
  const auto [out, stopped] = push_all(text, "a\xe2\x82\xac\xe2\x82\xac");
  EXPECT_FALSE(stopped);
  EXPECT_EQ(out, "a\xe2\x82\xac");
  EXPECT_EQ(text.finish(), "\xe2\x82\xac");
}

TEST_F(OutputTextTest, AStopStringMayEndInTheMiddleOfAWord) {
  OutputText text = with_stop({"\xe2\x82\xac u"});
  EXPECT_EQ(push_all(text, "5 \xe2\x82\xac und"), (std::pair<std::string, bool>{"5 ", true}));
}

TEST_F(OutputTextTest, AStopStringMayStayInTheText) {
  OutputText text(&tokenizer_, {.texts = {"END", "N"}, .is_kept = true});
  EXPECT_EQ(push_all(text, "The ENDs"), (std::pair<std::string, bool>{"The EN", true}))
      << "the first that is complete";
  EXPECT_EQ(text.bytes(), 6u);
  OutputText inside(&tokenizer_, {.texts = {"ll"}, .is_kept = true});
  EXPECT_EQ(inside.push(259).text, "hell");
}

TEST_F(OutputTextTest, AStopStringInTheFirstMinTokensDoesNotCount) {
  OutputText text(&tokenizer_, {.texts = {"ab"}, .min_tokens = 4});
  EXPECT_EQ(push_all(text, "abababx"), (std::pair<std::string, bool>{"abab", true}));
  OutputText across(&tokenizer_, {.texts = {"ab"}, .min_tokens = 3});
  EXPECT_EQ(push_all(across, "abab"), (std::pair<std::string, bool>{"ab", true}))
      << "it ends behind them";
  OutputText never(&tokenizer_, {.texts = {"a"}, .min_tokens = 9});
  EXPECT_EQ(push_all(never, "aaaaaaaa"), (std::pair<std::string, bool>{"aaaaaaaa", false}));
  EXPECT_EQ(never.finish(), "");
}

TEST(OutputText, WithoutATokenizerThereIsNoTextAndNoStop) {
  OutputText text(nullptr, {.texts = {"a"}});
  const auto piece = text.push('a');
  EXPECT_FALSE(piece.stopped);
  EXPECT_EQ(piece.text + text.finish(), "");
  EXPECT_EQ(text.bytes(), 0u);
}

}  // namespace
}  // namespace kvhive::testing
