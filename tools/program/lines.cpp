#include "tools/program/lines.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <sstream>

namespace kvhive {

std::optional<std::size_t> terminal_width() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return is_known ? std::optional<std::size_t>(size.ws_col) : std::nullopt;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::istringstream words{std::string(text)};
  std::vector<std::string> lines;
  for (std::string word; words >> word;)
    if (lines.empty() || lines.back().size() + 1 + word.size() > width)
      lines.push_back(std::move(word));
    else
      lines.back() += " " + word;
  return lines;
}

}  // namespace kvhive
