#pragma once
// Ranges of bytes of a file, for the one process that allocates in it. First fit; a range that
// comes back is joined with its free neighbours.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "ipc/channel/channel_layout.hpp"

namespace kvhive {

class RangeHeap {
 public:
  RangeHeap(std::uint64_t begin, std::uint64_t end) { free_.emplace(begin, end - begin); }

  /// At least `bytes` bytes, a multiple of 16 at an offset of that kind; nothing = there is no
  /// room.
  std::optional<ChannelRange> take(std::size_t bytes);
  /// A range that take() has returned; `bytes` may be smaller by what was rounded up.
  void put(const ChannelRange& range);

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  ///< offset -> bytes; never adjacent
};

}  // namespace kvhive
