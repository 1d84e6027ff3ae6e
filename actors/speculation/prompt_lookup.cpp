#include "actors/speculation/prompt_lookup.hpp"

#include <algorithm>

namespace kvhive {
namespace {

/// How many tokens that end at `end` are those that end the text, at most `most`.
std::size_t common_end(std::span<const TokenId> text, std::size_t end, std::size_t most) {
  most = std::min(most, end);
  std::size_t length = 0;
  while (length < most && text[end - 1 - length] == text[text.size() - 1 - length]) ++length;
  return length;
}

}  // namespace

std::span<const TokenId> look_up(std::span<const TokenId> text, const PromptLookup& lookup,
                                 std::size_t most) {
  most = std::min<std::size_t>(most, lookup.drafts);
  if (most == 0 || text.empty()) return {};
  std::size_t behind = 0, longest = lookup.shortest - 1;
  const auto last = text.end() - 1;
  for (auto found = text.begin(); longest < lookup.longest; ++found) {
    found = std::find(found, last, *last);
    if (found == last) break;
    const auto end = static_cast<std::size_t>(found - text.begin()) + 1;
    const std::size_t length = common_end(text, end, lookup.longest);
    if (length <= longest) continue;
    longest = length;
    behind = end;
  }
  if (behind == 0) return {};
  return text.subspan(behind, std::min(most, text.size() - behind));
}

}  // namespace kvhive
