#include "config/window_retention.hpp"

#include <algorithm>

#include "config/domains/rule_text.hpp"

namespace kvhive {

Expected<WindowRetention> parse_window_retention(const std::string& text) {
  if (text == "dense") return WindowRetention{std::nullopt};
  if (std::uint32_t tokens = 0; parse_number(tokens, text)) return WindowRetention{tokens};
  return failure(Errc::bad_argument, "'" + text + "' is neither a number of tokens nor dense");
}

std::string to_string(const WindowRetention& retention) {
  return retention.interval ? std::to_string(*retention.interval) : "dense";
}

bool is_retained(const WindowRetention& retention, const CacheGroup& group, std::size_t block,
                 const ResumePoints& points, std::size_t block_size) {
  if (group.kind != CacheKind::sliding_window || !retention.interval) return true;
  // What a hit needs of the window.
  const std::size_t needed = (group.span - 1 + block_size - 1) / block_size;
  const auto ends_at = [&](std::size_t end) { return block < end && block + needed >= end; };
  const auto before = [&](std::size_t tokens) { return ends_at(tokens / block_size); };
  if (before(std::max<std::size_t>(points.prompt_tokens, 1) - 1) || before(points.junction))
    return true;
  const std::size_t stretch = *retention.interval / block_size;
  return stretch != 0 && ends_at((block / stretch + 1) * stretch);
}

}  // namespace kvhive
