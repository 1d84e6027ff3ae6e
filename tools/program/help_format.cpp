#include "tools/program/help_format.hpp"

#include <sstream>

#include "tools/program/option_text.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kIndent = 6;

std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string lines, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && kIndent + line.size() + 1 + word.size() > kWidth) {
      lines += std::string(kIndent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? lines : lines + std::string(kIndent, ' ') + line + "\n";
}

}  // namespace

std::string HelpFormat::make_option(const CLI::Option* option, bool) const {
  return "  " + usage_text(*option) + "\n" + wrapped(option->get_description());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return "  " + command->get_name() + "\n" + wrapped(command->get_description());
}

}  // namespace kvhive
