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

/// A sequence inside one engine; never reused.
using SeqId = StrongId<struct SeqIdTag, std::uint64_t>;
/// 0..30, a bit of a holder mask.
using ProcessSlot = StrongId<struct ProcessSlotTag, std::uint32_t>;
/// Slots of a pool: a bit each in a block's word.
inline constexpr std::uint32_t kMaxProcesses = 31;
/// Who may share with whom; the operator says who is in which (options sharing and domains).
using DomainId = StrongId<struct DomainIdTag, std::uint16_t>;

/// Token ids are plain numbers: they are read from files, hashed, compared and indexed with, never
/// mixed up with blocks.
using TokenId = std::int32_t;

// In shared memory, messages and kernel arguments.
static_assert(sizeof(BlockId) == 4 && std::is_trivially_copyable_v<BlockId>);

}  // namespace kvhive

template <class Tag, class Rep>
struct std::hash<kvhive::StrongId<Tag, Rep>> {
  std::size_t operator()(kvhive::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
