#include "tools/program/help_format.hpp"

#include <algorithm>

#include "tools/program/lines.hpp"
#include "tools/program/option_text.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kWidth = 80, kLeastWidth = 40;
constexpr std::size_t kIndent = 6;

std::string indented(const std::string& text, std::size_t indent = kIndent) {
  // At most 80 columns, and those of a terminal that is narrower.
  const std::size_t width = std::clamp(terminal_width().value_or(kWidth), kLeastWidth, kWidth);
  std::string lines;
  for (const std::string& line : wrapped(text, width - indent))
    lines += std::string(indent, ' ') + line + "\n";
  return lines;
}

}  // namespace

std::string HelpFormat::make_description(const CLI::App* command) const {
  const std::string text = indented(command->get_description(), 0);
  return text.empty() ? text : text + "\n";
}

std::string HelpFormat::make_option(const CLI::Option* option, bool) const {
  return "  " + usage_text(*option) + "\n" + indented(option->get_description());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return "  " + command->get_name() + "\n" + indented(command->get_description());
}

}  // namespace kvhive
