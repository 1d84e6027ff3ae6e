#include "ipc/channel/range_heap.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "base/round_up.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kAlignment = 16;

}  // namespace

std::optional<ChannelRange> RangeHeap::take(std::size_t bytes) {
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < rounded) continue;
    const auto [offset, size] = *range;
    free_.erase(range);
    if (size > rounded) free_.emplace(offset + rounded, size - rounded);
    return ChannelRange{offset, rounded};
  }
  return std::nullopt;
}

void RangeHeap::put(const ChannelRange& range) {
  const auto [here, inserted] = free_.emplace(range.offset, round_up(range.bytes, kAlignment));
  KV_CHECK(inserted, range.offset);
  if (const auto next = std::next(here);
      next != free_.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here == free_.begin()) return;
  const auto before = std::prev(here);
  if (before->first + before->second == here->first) {
    before->second += here->second;
    free_.erase(here);
  }
}

}  // namespace kvhive
