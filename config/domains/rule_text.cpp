#include "config/domains/rule_text.hpp"

#include <algorithm>

namespace kvhive {
namespace {

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

}  // namespace

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  if (trimmed(text).empty()) return pieces;
  for (std::size_t from = 0; from <= text.size();) {
    const auto end = std::min(text.find(separator, from), text.size());
    pieces.push_back(trimmed(text.substr(from, end - from)));
    from = end + 1;
  }
  return pieces;
}

tl::unexpected<Error> bad_value(const std::string& value, const std::string& remedy) {
  return failure(Errc::bad_argument, "'" + value + "' " + remedy);
}

}  // namespace kvhive
