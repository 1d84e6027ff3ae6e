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
      const ExtraKey before = is_chained && block != 0 ? kNoExtraKey : digest_;
      const ExtraKey extra = with_rows(hasher, before, block);
      const Hash128 parent = is_chained && block != 0 ? names.back() : hasher.root(domain_, group);
      names.push_back(hasher.child(parent, content, extra));
      if (!is_none(extra) || !extras.empty()) {
        extras.resize(block, kNoExtraKey);
        extras.push_back(extra);
      }
    }
    if (needs_digests) digest_ = hasher.digest(with_rows(hasher, digest_, block), content);
  }
}

ExtraKey SequenceNames::before(std::size_t block) const {
  if (block >= blocks()) return digest_;
  for (std::size_t g = 0; g < groups_.count; ++g) {
    if (groups_.is_chained(groups_.id(g))) continue;
    const auto& extras = of_[g].extras;
    return block < extras.size() ? extras[block] : kNoExtraKey;
  }
  return digest_;  // the first block's
}

/// An extra key of the block that depends on its rows, too, if it has some.
ExtraKey SequenceNames::with_rows(const BlockHasher& hasher, const ExtraKey& before,
                                  std::size_t block) const {
  const std::size_t first = block * tokens_per_block_;
  if (embedded_ == nullptr || first >= embedded_->rows()) return before;
  const std::size_t rows = std::min(tokens_per_block_, embedded_->rows() - first);
  return hasher.digest(before, embedded_->digests().subspan(first, rows));
}

}  // namespace kvhive
