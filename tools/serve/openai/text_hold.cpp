#include "tools/serve/openai/text_hold.hpp"

#include <algorithm>

namespace kvhive {
namespace {

/// Where in the text a stop text begins, or may begin with its last bytes.
std::size_t first_suspect(std::string_view text, const std::vector<std::string>& stop) {
  std::size_t first = text.size();
  for (const std::string_view wanted : stop)
    for (std::size_t at = 0; at < first; ++at) {
      const std::string_view rest = text.substr(at, wanted.size());
      if (wanted.starts_with(rest)) first = at;
    }
  return first;
}

}  // namespace

std::string TextHold::push(std::string_view text) {
  held_ += text;
  const std::size_t free = first_suspect(held_, stop_);
  std::string shown = held_.substr(0, free);
  held_.erase(0, free);
  shown_ += free;
  return shown;
}

std::string TextHold::finish(std::size_t whole_bytes) {
  const std::size_t left = whole_bytes > shown_ ? whole_bytes - shown_ : 0;
  std::string rest = held_.substr(0, left);
  shown_ += rest.size();
  held_.clear();
  return rest;
}

}  // namespace kvhive
