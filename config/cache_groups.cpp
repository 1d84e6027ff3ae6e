#include "config/cache_groups.hpp"

#include <algorithm>
#include <vector>

namespace kvhive {
namespace {

std::size_t blocks_for(std::size_t tokens, std::size_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

/// What one group has of a sequence, as far as it was asked.
class GroupLookup {
 public:
  GroupLookup(std::size_t number, const CacheGroup& group, std::size_t most, std::size_t block_size,
              const HasBlock& has)
      : number_(number),
        group_(group),
        block_size_(block_size),
        has_(has),
        known_(most, kUnknown) {}

  /// The longest hit of at most `most` blocks.
  std::size_t hit(std::size_t most) {
    switch (group_.kind) {
      case CacheKind::full: return run_from(0, most);
      case CacheKind::chunked_local:
        return run_from(group_.first_block(most * block_size_, block_size_), most);
      case CacheKind::sliding_window: return last_window(most);
    }
    return 0;
  }

 private:
  enum Known : std::uint8_t { kUnknown, kYes, kNo };

  bool has(std::size_t block) {
    if (known_[block] == kUnknown) known_[block] = has_(number_, block) ? kYes : kNo;
    return known_[block] == kYes;
  }

  std::size_t run_from(std::size_t first, std::size_t most) {
    std::size_t end = first;
    while (end < most && has(end)) ++end;
    return end;
  }

  /// The end of the last window that is there as a whole; or else the blocks that are there from
  /// the start on.
  std::size_t last_window(std::size_t most) {
    const std::size_t needed = blocks_for(group_.span - 1, block_size_);
    if (needed == 0) return most;
    std::size_t found = 0, end = 0;
    for (std::size_t block = most; block-- > 0;) {
      if (!has(block)) {
        found = 0;
        continue;
      }
      if (found++ == 0) end = block + 1;
      if (found == needed) return end;
    }
    return found == 0 ? 0 : end;
  }

  std::size_t number_;
  CacheGroup group_;
  std::size_t block_size_;
  const HasBlock& has_;
  std::vector<Known> known_;
};

}  // namespace

std::string_view to_string(CacheKind kind) {
  switch (kind) {
    case CacheKind::full: return "full";
    case CacheKind::sliding_window: return "sliding_window";
    case CacheKind::chunked_local: return "chunked_local";
  }
  return "unknown";
}

std::string to_string(const CacheGroup& group) {
  switch (group.kind) {
    case CacheKind::full: return "full attention";
    case CacheKind::sliding_window: return "sliding window of " + std::to_string(group.span);
    case CacheKind::chunked_local: return "chunks of " + std::to_string(group.span);
  }
  return "unknown";
}

std::size_t CacheGroup::most_blocks(std::size_t tokens, std::size_t step_tokens,
                                    std::size_t block_size) const {
  const std::size_t all = blocks_for(tokens, block_size);
  switch (kind) {
    case CacheKind::full: return all;
    // One more, because a window begins somewhere within a block.
    case CacheKind::sliding_window:
      return std::min(all, blocks_for(span - 1 + step_tokens, block_size) + 1);
    // One more where chunks begin within blocks.
    case CacheKind::chunked_local:
      return std::min(
          all, blocks_for(span + step_tokens, block_size) + (span % block_size == 0 ? 0 : 1));
  }
  return all;
}

std::size_t CacheGroups::most_blocks(std::size_t tokens, std::size_t step_tokens,
                                     std::size_t block_size) const {
  std::size_t sum = 0;
  for (const CacheGroup& one : all()) sum += one.most_blocks(tokens, step_tokens, block_size);
  return sum;
}

std::size_t CacheGroups::longest_sequence(std::size_t blocks, std::size_t step_tokens,
                                          std::size_t block_size, std::size_t most) const {
  std::size_t fits = 0, too_long = most + 1;
  while (fits + 1 < too_long) {
    const std::size_t middle = fits + (too_long - fits) / 2;
    (most_blocks(middle, step_tokens, block_size) <= blocks ? fits : too_long) = middle;
  }
  return fits;
}

GroupsHit longest_hit(const CacheGroups& groups, std::size_t most, std::size_t block_size,
                      const HasBlock& has) {
  const auto full = std::ranges::find(groups.all(), CacheKind::full, &CacheGroup::kind);
  const CacheGroup& first = full != groups.all().end() ? *full : groups.group[0];
  std::vector<GroupLookup> lookups;
  const auto add = [&](bool are_first) {
    for (std::size_t g = 0; g < groups.count; ++g)
      if ((groups.group[g] == first) == are_first)
        lookups.emplace_back(g, groups.group[g], most, block_size, has);
  };
  add(true);
  const std::size_t alike = lookups.size();
  add(false);

  GroupsHit hit{.blocks = most};
  for (std::size_t agreed = 0, asked = 0; agreed < lookups.size() && hit.blocks != 0; ++asked) {
    const std::size_t shorter = lookups[asked % lookups.size()].hit(hit.blocks);
    agreed = shorter == hit.blocks ? agreed + 1 : 0;
    hit.blocks = shorter;
    if (asked < alike) hit.of_first = shorter;
  }
  return hit;
}

}  // namespace kvhive
