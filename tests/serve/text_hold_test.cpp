#include "tools/serve/openai/text_hold.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

TEST(TextHold, ShowsEverythingIfThereIsNoStopText) {
  TextHold hold({});
  EXPECT_EQ(hold.push("abc"), "abc");
  EXPECT_EQ(hold.finish(3), "");
}

TEST(TextHold, KeepsBackWhatMayBecomeAStopText) {
  TextHold hold({"heaven"});
  EXPECT_EQ(hold.push("the hea"), "the ");
  EXPECT_EQ(hold.push("rt he"), "heart ");
  EXPECT_EQ(hold.push("aven"), "");
  EXPECT_EQ(hold.finish(10), "");
}

TEST(TextHold, ShowsTheRestIfTheTextEndsWithoutTheStopText) {
  TextHold hold({"heaven", "ea"});
  EXPECT_EQ(hold.push("the h"), "the ");
  EXPECT_EQ(hold.finish(5), "h");
}

TEST(TextHold, TakesTheFirstOfStopTextsThatOverlap) {
  TextHold hold({"bcd", "ab"});
  EXPECT_EQ(hold.push("xabcd"), "x");
  EXPECT_EQ(hold.finish(1), "");
}

/// Whatever the pieces are, what is shown is the text before the stop text.
TEST(TextHold, ShowsTheSameHoweverTheTextIsCut) {
  const std::string text = "aabaabaaabaab|aab";
  const std::size_t end = text.find("aaab");
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    TextHold hold({"aaab"});
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += piece)
      shown += hold.push(text.substr(at, piece));
    EXPECT_EQ(shown + hold.finish(end), text.substr(0, end)) << piece;
  }
}

}  // namespace
}  // namespace kvhive
