#include "tools/screen/frame.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

TEST(FrameWidth, WideLettersTakeTwoColumnsAndMarksNone) {
  EXPECT_EQ(width_of("abc"), 3u);
  EXPECT_EQ(width_of("\xE4\xBD\xA0\xE5\xA5\xBD"), 4u) << "two Chinese characters";
  EXPECT_EQ(width_of("e\xCC\x81"), 1u) << "e and a combining accent";
  EXPECT_EQ(width_of("\xE2\x96\x80"), 1u) << "an upper half block";
}

TEST(FrameWidth, TextIsCutByColumnsNotBytes) {
  EXPECT_EQ(cut("abcdef", 6), "abcdef");
  EXPECT_EQ(cut("abcdef", 4), "abc~");
  EXPECT_EQ(cut("\xE4\xBD\xA0\xE5\xA5\xBD!", 4), "\xE4\xBD\xA0~")
      << "half a character is no character";
  EXPECT_EQ(cut("abc", 0), "");
}

TEST(Frame, KeepsWhatFitsAndDropsTheRest) {
  Frame frame({5, 2});
  EXPECT_EQ(frame.put(0, 3, "xyz"), 6u);
  frame.put(7, 0, "below");
  frame.put_right(1, 5, "12");
  EXPECT_EQ(frame.text(), "   xy\n   12\n");
}

TEST(Frame, AWideLetterAtTheEdgeIsLeftOut) {
  Frame frame({3, 1});
  frame.put(0, 0, "ab\xE4\xBD\xA0");
  EXPECT_EQ(frame.text(), "ab\n");
  Frame other({4, 1});
  other.put(0, 0, "a\xE4\xBD\xA0z");
  EXPECT_EQ(other.text(), "a\xE4\xBD\xA0z\n");
}

/// A client's program name is what its user likes.
TEST(Frame, ControlCharactersAndBrokenBytesCommandNothing) {
  Frame frame({20, 1});
  frame.put(0, 0,
            "a\033[2Jb\nc\x80\x9b"
            "d");
  EXPECT_EQ(frame.text(), "a?[2Jb?c??d\n");
  Frame other({20, 1});
  other.put(0, 0,
            "x\xC2\x9B"
            "31my\xE2\x80\xAEz");
  EXPECT_EQ(other.text(), "x?31my?z\n") << "C1 control, right-to-left override";
}

TEST(Frame, RowsOfAnotherFrameAreCopied) {
  Frame small({2, 1}), large({4, 3});
  small.put(0, 0, "ab", kBold);
  large.put_frame(1, small);
  EXPECT_EQ(large.text(), "\nab\n\n");
  EXPECT_EQ(large.at(1, 0).style, kBold);
}

}  // namespace
}  // namespace kvhive::testing
