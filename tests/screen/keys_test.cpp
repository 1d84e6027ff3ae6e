#include "tools/screen/keys.hpp"

#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

TEST(Keys, LettersAndSequencesOfOneRead) {
  const std::vector<Key> keys = keys_in("q\033[A\033OB\033[5~\t\033[Z\r\x7f/");
  const std::vector<Key> expected = {
      {KeyCode::letter, 'q'}, {KeyCode::up, 0},        {KeyCode::down, 0},
      {KeyCode::page_up, 0},  {KeyCode::tab, 0},       {KeyCode::back_tab, 0},
      {KeyCode::enter, 0},    {KeyCode::backspace, 0}, {KeyCode::letter, '/'}};
  EXPECT_EQ(keys, expected);
}

TEST(Keys, EscapeAloneIsAKey) {
  EXPECT_EQ(keys_in("\033"), (std::vector<Key>{{KeyCode::escape, 0}}));
}

TEST(Keys, WhatIsNotKnownIsPassedOverWhole) {
  EXPECT_EQ(
      keys_in("\033[1;5Cx\x01"),
      (std::vector<Key>{{KeyCode::unknown, 0}, {KeyCode::letter, 'x'}, {KeyCode::unknown, 0}}));
  EXPECT_EQ(keys_in("\033[200"), (std::vector<Key>{{KeyCode::unknown, 0}}));
}

}  // namespace
}  // namespace kvhive::testing
