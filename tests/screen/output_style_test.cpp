#include "tools/screen/output_style.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace kvhive::testing {
namespace {

/// The style in an environment of these variables alone.
OutputStyle in(std::map<std::string, std::string> variables, bool is_terminal = true) {
  for (const char* name : {"TERM", "NO_COLOR", "COLORTERM", "LC_ALL", "LC_CTYPE", "LANG"}) {
    unsetenv(name);
    if (variables.contains(name)) setenv(name, variables[name].c_str(), 1);
  }
  return style_of_environment(is_terminal);
}

TEST(OutputStyle, ColoursAreWhatTheTerminalHas) {
  EXPECT_EQ(in({{"TERM", "linux"}}).colours, Colours::basic);
  EXPECT_EQ(in({{"TERM", "xterm-256color"}}).colours, Colours::many);
  EXPECT_EQ(in({{"TERM", "xterm"}, {"COLORTERM", "truecolor"}}).colours, Colours::all);
}

TEST(OutputStyle, NoColoursWhereNoneAreWanted) {
  EXPECT_EQ(in({{"TERM", "xterm-256color"}, {"NO_COLOR", "1"}}).colours, Colours::none);
  EXPECT_EQ(in({{"TERM", "xterm-256color"}, {"NO_COLOR", ""}}).colours, Colours::many)
      << "empty = not set";
  EXPECT_EQ(in({{"TERM", "dumb"}, {"COLORTERM", "truecolor"}}).colours, Colours::none);
  EXPECT_EQ(in({}).colours, Colours::none);
  EXPECT_EQ(in({{"TERM", "xterm-256color"}}, false).colours, Colours::none) << "a pipe";
}

TEST(OutputStyle, LettersFollowTheLocaleInItsOrder) {
  EXPECT_EQ(in({{"TERM", "xterm"}, {"LANG", "de_DE.UTF-8"}}).letters, Letters::utf8);
  EXPECT_EQ(in({{"TERM", "xterm"}, {"LANG", "C"}}).letters, Letters::ascii);
  EXPECT_EQ(in({{"TERM", "xterm"}, {"LANG", "C.UTF-8"}, {"LC_ALL", "C"}}).letters, Letters::ascii);
  EXPECT_EQ(in({{"TERM", "xterm"}, {"LANG", "C"}, {"LC_CTYPE", "C.utf8"}}).letters, Letters::utf8);
  EXPECT_EQ(in({{"TERM", "dumb"}, {"LANG", "C.UTF-8"}}).letters, Letters::ascii);
}

}  // namespace
}  // namespace kvhive::testing
