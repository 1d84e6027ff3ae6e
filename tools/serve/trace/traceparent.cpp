#include "tools/serve/trace/traceparent.hpp"

#include <algorithm>

namespace kvhive {
namespace {

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
bool is_id(std::string_view text) {
  return is_hexadecimal(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view header) {
  // version-trace-parent-flags; a later version may go on behind another dash.
  constexpr std::size_t kLength = 55;
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  const bool may_go_on = version != "00" && header.size() > kLength && header[kLength] == '-';
  if (header.size() != kLength && !may_go_on) return std::nullopt;
  if (!is_hexadecimal(version) || version == "ff" || !is_hexadecimal(flags) || !is_id(trace) ||
      !is_id(parent))
    return std::nullopt;
  return TraceParent{std::string(trace), std::string(parent)};
}

}  // namespace kvhive
