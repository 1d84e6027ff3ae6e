#include "tools/program/help_format.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "tools/program/option_text.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kWidth = 80, kLeastWidth = 40;
constexpr std::size_t kIndent = 6;

/// Of a terminal that is narrower, its own.
std::size_t line_width() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? std::clamp<std::size_t>(size.ws_col, kLeastWidth, kWidth) : kWidth;
}

std::string wrapped(const std::string& text, std::size_t indent = kIndent) {
  const std::size_t width = line_width();
  std::istringstream words(text);
  std::string lines, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      lines += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? lines : lines + std::string(indent, ' ') + line + "\n";
}

}  // namespace

std::string HelpFormat::make_description(const CLI::App* command) const {
  const std::string text = wrapped(command->get_description(), 0);
  return text.empty() ? text : text + "\n";
}

std::string HelpFormat::make_option(const CLI::Option* option, bool) const {
  return "  " + usage_text(*option) + "\n" + wrapped(option->get_description());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return "  " + command->get_name() + "\n" + wrapped(command->get_description());
}

}  // namespace kvhive
