#pragma once
// The ids that the whole project uses. Each id is a type of its own, so that the compiler refuses,
// for example, a sequence id where a block id is meant.

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

/// A block of the pool. With D device blocks and H host blocks, device blocks have ids 0..D-1 (0 is
/// the null block, which is never allocated) and host blocks D..D+H-1 (like vLLM V0's unified id
/// space). A block's index inside its tier's arena is its id minus the tier's first id.
using BlockId = StrongId<struct BlockIdTag, std::uint32_t>;
inline constexpr BlockId kNullBlock{0};

/// A sequence inside one engine. An engine never uses a number twice.
using SeqId = StrongId<struct SeqIdTag, std::uint64_t>;
/// The number of a process's slot in the pool, 0..30. It is also the process's bit in holder masks.
using ProcessSlot = StrongId<struct ProcessSlotTag, std::uint32_t>;
/// How many slots a pool has: a block's word has a bit for each.
inline constexpr std::uint32_t kMaxProcesses = 31;
/// A domain: clients of the same domain share cached blocks, clients of different domains do not.
/// The operator decides which user is in which domain (options `sharing` and `domains`).
using DomainId = StrongId<struct DomainIdTag, std::uint16_t>;
/// A model of a pool, by its place among the daemon's (option `model`).
using ModelId = StrongId<struct ModelIdTag, std::uint8_t>;
/// A cache group of a pool (config/cache_groups.hpp): layers that see the same part of a sequence.
using GroupId = StrongId<struct GroupIdTag, std::uint8_t>;

/// Token ids are plain numbers, because they are read from files, hashed, compared and used as
/// indices.
using TokenId = std::int32_t;
/// Stands in the place of a token that is given as an embedding (hashing/embedded_prompt.hpp).
inline constexpr TokenId kEmbedded = -1;

// Block ids are stored in shared memory, messages and kernel arguments.
static_assert(sizeof(BlockId) == 4 && std::is_trivially_copyable_v<BlockId>);

}  // namespace kvhive

template <class Tag, class Rep>
struct std::hash<kvhive::StrongId<Tag, Rep>> {
  std::size_t operator()(kvhive::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
