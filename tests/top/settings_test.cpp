#include "tools/top/settings.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

/// What these keys make of the settings; the last action.
TopAction press(TopSettings& settings, std::string_view bytes, std::size_t rows = 5) {
  TopAction action = TopAction::redraw;
  for (const Key key : keys_in(bytes)) action = apply(key, settings, rows);
  return action;
}

TEST(TopKeys, QuitPauseAndGoOn) {
  TopSettings settings;
  EXPECT_EQ(press(settings, "q"), TopAction::quit);
  EXPECT_EQ(press(settings, "p"), TopAction::redraw);
  EXPECT_TRUE(settings.is_paused);
  EXPECT_EQ(press(settings, " "), TopAction::read_again);
  EXPECT_FALSE(settings.is_paused);
}

TEST(TopKeys, PanesByNumberAndInTurn) {
  TopSettings settings;
  press(settings, "3");
  EXPECT_EQ(settings.pane, Pane::clients);
  press(settings, "\t\t");
  EXPECT_EQ(settings.pane, Pane::engines);
  press(settings, "\033[Z");
  EXPECT_EQ(settings.pane, Pane::map);
}

TEST(TopKeys, EachPaneKeepsItsOrder) {
  TopSettings settings;
  press(settings, "ss>r2<");
  EXPECT_EQ(settings.sort[0], 3u);
  EXPECT_TRUE(settings.is_reversed[0]);
  EXPECT_EQ(settings.sort[1], grid_of(Pane::domains, {}, {}).columns.size() - 1)
      << "before the first is the last";
  EXPECT_FALSE(settings.is_reversed[1]);
  press(settings, "4srr<");
  EXPECT_EQ(settings.pane, Pane::map) << "the map has no order, and no key harms";
}

TEST(TopKeys, AFilterIsTypedKeptAndEnded) {
  TopSettings settings;
  press(settings, "/pqx\x7f\r");
  EXPECT_EQ(settings.filter, "pq") << "while it is typed, q is a letter";
  EXPECT_FALSE(settings.is_typing);
  EXPECT_EQ(press(settings, "q"), TopAction::quit);
  press(settings, "/\xC3\xA4\x7f");
  EXPECT_EQ(settings.filter, "pq") << "a character of two bytes goes whole";
  press(settings, "\033");
  EXPECT_EQ(settings.filter, "");
  EXPECT_FALSE(settings.is_typing);
}

TEST(TopKeys, TheIntervalHasStepsAndEnds) {
  TopSettings settings;
  EXPECT_EQ(press(settings, "+"), TopAction::read_again);
  EXPECT_EQ(settings.interval, 0.5);
  press(settings, "+++++");
  EXPECT_EQ(settings.interval, 0.1);
  settings.interval = 3;
  press(settings, "-");
  EXPECT_EQ(settings.interval, 5);
  settings.interval = 600;
  press(settings, "-");
  EXPECT_EQ(settings.interval, 600);
}

TEST(TopKeys, ScrollingEndsWithTheRows) {
  TopSettings settings;
  press(settings, "\033[B\033[B");
  EXPECT_EQ(settings.first_row, 2u);
  press(settings, "\033[6~");
  EXPECT_EQ(settings.first_row, 4u);
  press(settings, "\033[A\033[H");
  EXPECT_EQ(settings.first_row, 0u);
  press(settings, "\033[B", 0);
  EXPECT_EQ(settings.first_row, 0u);
}

TEST(TopKeys, HelpGoesWithAnyKey) {
  TopSettings settings;
  press(settings, "?");
  EXPECT_TRUE(settings.has_help);
  press(settings, "3");
  EXPECT_FALSE(settings.has_help);
  EXPECT_EQ(settings.pane, Pane::engines);
}

TEST(TopKeys, TheMapsMeaningGoesRound) {
  TopSettings settings;
  EXPECT_EQ(press(settings, "b"), TopAction::read_again);
  EXPECT_EQ(settings.by, MapBy::owner);
  press(settings, "bbbbb");
  EXPECT_EQ(settings.by, MapBy::state);
}

}  // namespace
}  // namespace kvhive::testing
