#include "actors/prefix/step_blocks.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace kvhive {

void StepBlocks::add(const SequenceContent& sequence, GroupId group, std::span<const BlockId> table,
                     std::size_t first, std::size_t end) {
  const auto names = sequence.names.names(group);
  KV_CHECK(end <= names.size(), end, names.size());
  for (std::size_t i = first; i < end; ++i)
    if (table[i] != kNullBlock)
      of_[groups_.place(group)].try_emplace(names[i], Filled{table[i], sequence});
}

/// Compares domain, extra keys and all tokens from the start on, as a match in the pool does block
/// by block: a name may be another content's, too.
std::vector<BlockId> StepBlocks::find(const SequenceContent& sequence, GroupId group,
                                      std::size_t first, std::size_t count) const {
  const auto& filled = of_[groups_.place(group)];
  const auto names = sequence.names.names(group);
  std::vector<BlockId> found;
  const SequenceNames* compared_with = nullptr;
  std::size_t compared = 0;  // tokens
  for (std::size_t i = first; i < first + count; ++i) {
    const auto there = filled.find(names[i]);
    if (there == filled.end()) break;
    const auto& [block, owner] = there->second;
    if (std::exchange(compared_with, &owner.names) != &owner.names) compared = 0;
    const std::size_t from = std::exchange(compared, (i + 1) * block_size_);
    const auto tokens = [&](const SequenceContent& content) {
      return content.tokens.subspan(from, compared - from);
    };
    const auto extra = [&](const SequenceContent& content, std::size_t place) {
      const auto all = content.names.extras(group);
      return place < all.size() ? all[place] : kNoExtraKey;
    };
    const auto has_equal_extras = [&] {
      for (std::size_t place = from / block_size_; place <= i; ++place)
        if (extra(owner, place) != extra(sequence, place)) return false;
      return true;
    };
    if (compared > owner.tokens.size()) break;
    if (owner.domain != sequence.domain || owner.resets != sequence.resets ||
        !std::ranges::equal(tokens(owner), tokens(sequence)) || !has_equal_extras())
      break;
    found.push_back(block);
  }
  return found;
}

}  // namespace kvhive
