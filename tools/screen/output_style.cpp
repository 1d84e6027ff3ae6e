#include "tools/screen/output_style.hpp"

#include <sys/ioctl.h>

#include <cstdlib>
#include <string_view>

namespace kvhive {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// As setlocale() would choose; the programs themselves stay in the C locale.
bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = variable(name);
    if (locale.empty()) continue;
    for (const std::string_view part : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (locale.find(part) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

Colours colours_of_terminal() {
  if (!variable("NO_COLOR").empty() || is_dumb_terminal()) return Colours::none;
  const std::string_view depth = variable("COLORTERM");
  if (depth == "truecolor" || depth == "24bit") return Colours::all;
  return variable("TERM").find("256color") != std::string_view::npos ? Colours::many
                                                                     : Colours::basic;
}

}  // namespace

bool is_dumb_terminal() {
  const std::string_view terminal = variable("TERM");
  return terminal.empty() || terminal == "dumb";
}

OutputStyle style_of_environment(bool is_terminal) {
  return {
      is_terminal ? colours_of_terminal() : Colours::none,
      is_utf8_locale() && !(is_terminal && is_dumb_terminal()) ? Letters::utf8 : Letters::ascii};
}

ScreenSize size_of_terminal(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

}  // namespace kvhive
