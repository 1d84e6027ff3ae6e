#include "tools/screen/paint.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

constexpr Colour kTeal{0, 158, 115, 2};

Frame frame_of(std::initializer_list<const char*> rows, std::size_t width = 8) {
  Frame frame({width, rows.size()});
  std::size_t row = 0;
  for (const char* text : rows) frame.put(row++, 0, text);
  return frame;
}

TEST(Paint, TheFirstFrameClearsTheScreenAndWritesEveryRow) {
  const Frame frame = frame_of({"one", "two"});
  EXPECT_EQ(repainted(nullptr, frame, Colours::none),
            "\033[?2026h\033[H\033[2J\033[1;1Hone\033[K\033[2;1Htwo\033[K\033[?2026l");
}

TEST(Paint, OnlyRowsThatDifferAreWritten) {
  const Frame before = frame_of({"one", "two", "three"}), now = frame_of({"one", "2", "three"});
  EXPECT_EQ(repainted(&before, now, Colours::none), "\033[?2026h\033[2;1H2\033[K\033[?2026l");
  EXPECT_EQ(repainted(&before, before, Colours::none), "");
}

TEST(Paint, AnotherStyleIsADifference) {
  const Frame before = frame_of({"one"});
  Frame now = before;
  now.paint_row(0, kReverse);
  EXPECT_NE(repainted(&before, now, Colours::none).find("\033[0;7mone"), std::string::npos)
      << "reverse is no colour: a selection is visible without any";
}

TEST(Paint, AnotherSizeIsPaintedWhole) {
  const Frame before = frame_of({"one"}), now = frame_of({"one"}, 9);
  EXPECT_NE(repainted(&before, now, Colours::none).find("\033[2J"), std::string::npos);
}

/// Behind a full row the cursor has not moved on yet, and ESC[K would erase the row's last letter.
TEST(Paint, AFullRowIsNotErasedAtItsEnd) {
  const Frame frame = frame_of({"12345678"});
  EXPECT_EQ(repainted(nullptr, frame, Colours::none),
            "\033[?2026h\033[H\033[2J\033[1;1H12345678\033[?2026l");
}

TEST(Paint, ColoursAreWrittenAsTheTerminalHasThem) {
  Frame frame({2, 1});
  frame.put(0, 0, "x", {{}, kTeal, false, false, false});
  EXPECT_EQ(printed(frame, Colours::none), "x\n");
  EXPECT_EQ(printed(frame, Colours::basic), "\033[0;42mx\033[0m\n");
  EXPECT_EQ(printed(frame, Colours::many), "\033[0;48;5;36mx\033[0m\n");
  EXPECT_EQ(printed(frame, Colours::all), "\033[0;48;2;0;158;115mx\033[0m\n");
}

}  // namespace
}  // namespace kvhive::testing
