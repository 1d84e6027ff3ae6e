#include "hashing/sequence_names.hpp"

#include <algorithm>

namespace kvhive {

void SequenceNames::extend(const BlockHasher& hasher, std::span<const TokenId> tokens) {
  const std::size_t end = tokens.size() / tokens_per_block_;
  if (end <= blocks()) return;
  const auto is_full = [](const CacheGroup& group) { return group.kind == CacheKind::full; };
  const std::size_t first = blocks();
  const bool needs_digests = !std::ranges::all_of(groups_.all(), is_full);
  for (std::size_t block = first; block < end; ++block) {
    const auto content = tokens.subspan(block * tokens_per_block_, tokens_per_block_);
    for (std::size_t g = 0; g < groups_.count; ++g) {
      auto& [names, extras] = of_[g];
      const GroupId group = groups_.id(g);
      const bool is_chained = groups_.is_chained(group);
      const ExtraKey extra = is_chained && block != 0 ? kNoExtraKey : digest_;
      const Hash128 parent = is_chained && block != 0 ? names.back() : hasher.root(domain_, group);
      names.push_back(hasher.child(parent, content, extra));
      if (!is_none(extra) || !extras.empty()) {
        extras.resize(block, kNoExtraKey);
        extras.push_back(extra);
      }
    }
    if (needs_digests) digest_ = hasher.digest(digest_, content);
  }
}

}  // namespace kvhive
