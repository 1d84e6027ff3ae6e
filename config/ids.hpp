#pragma once
// The ids everything else is spelled in. Each is its own type, so that a block can never be passed
// where a token is meant.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace kvhive {

template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

/// A block of the pool. Device blocks are 0..D-1 (0 is the null block, never handed out), host
/// blocks D..D+H-1 (vLLM V0's unified id space). The index inside its arena is id - first id of the
/// tier.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
inline constexpr BlockId kNullBlock{0};

using SeqId =
    StrongId<struct SeqIdTag, std::uint64_t>;  ///< a sequence inside one engine; never reused
using ProcessSlot =
    StrongId<struct ProcessSlotTag, std::uint32_t>;  ///< 0..30, a bit of a holder mask
using DomainId =
    StrongId<struct DomainIdTag, std::uint16_t>;  ///< who may share with whom; set by the operator

/// Token ids are plain numbers: they are read from files, hashed, compared and indexed with, never
/// mixed up with blocks.
using TokenId = std::int32_t;

static_assert(sizeof(BlockId) == 4 &&
              std::is_trivially_copyable_v<BlockId>);  // shm, messages, kernel arguments

}  // namespace kvhive

template <class Tag, class Rep>
struct std::hash<kvhive::StrongId<Tag, Rep>> {
  std::size_t operator()(kvhive::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
