#pragma once
// Layers that see the same part of a sequence form a cache group. Groups share one pool: their
// blocks are equal in bytes, and a sequence has a block table for each group.
//
// Source: vLLM v1/kv_cache_interface.py (specs), single_type_kv_cache_manager.py (what a group
// keeps and finds), kv_cache_coordinator.py HybridKVCacheCoordinator (how groups agree on a hit).

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/ids.hpp"

namespace kvhive {

/// Which tokens before it a token reads.
enum class CacheKind : std::uint8_t {
  full = 0,            ///< all
  sliding_window = 1,  ///< the last span - 1, and itself
  chunked_local = 2,   ///< those of its own chunk of span tokens
};
std::string_view to_string(CacheKind kind);

struct CacheGroup {
  CacheKind kind = CacheKind::full;
  std::uint32_t span = 0;  ///< tokens: the window's or the chunk's; 0 = full attention

  /// How many tokens at the start of a sequence no token from position `computed` on reads.
  std::size_t skipped_tokens(std::size_t computed) const {
    switch (kind) {
      case CacheKind::full: break;
      case CacheKind::sliding_window: return computed < span ? 0 : computed - span + 1;
      case CacheKind::chunked_local: return computed / span * span;
    }
    return 0;
  }
  /// The first block that a token from position `computed` on reads; those before it can go.
  std::size_t first_block(std::size_t computed, std::size_t block_size) const {
    return skipped_tokens(computed) / block_size;
  }
  /// The most blocks that one sequence of `tokens` tokens holds at a time, if a step computes at
  /// most `step_tokens` of them (vLLM: max_memory_usage_bytes, the cap of admission).
  std::size_t most_blocks(std::size_t tokens, std::size_t step_tokens,
                          std::size_t block_size) const;

  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};
/// "full attention", "sliding window of 4096", "chunks of 8192".
std::string to_string(const CacheGroup& group);

inline constexpr std::size_t kMostGroups = 16;

/// The groups of a model. Fixed when the pool is made.
struct CacheGroups {
  std::uint32_t count = 1;
  /// The number of the first one in its pool: those of the models before it come first.
  std::uint32_t first = 0;
  std::array<CacheGroup, kMostGroups> group{};

  std::span<const CacheGroup> all() const { return {group.data(), count}; }
  /// The number in the pool of the model's g-th group, and back.
  GroupId id(std::size_t g) const { return GroupId{static_cast<std::uint8_t>(first + g)}; }
  std::size_t place(GroupId id) const { return id.value - first; }
  const CacheGroup& operator[](GroupId id) const { return group[place(id)]; }
  /// Whether a block is known by the one before it, and so found only behind it.
  bool is_chained(GroupId id) const { return (*this)[id].kind == CacheKind::full; }
  /// As without groups: nothing is freed while a sequence lives.
  bool is_one_full() const { return count == 1 && group[0].kind == CacheKind::full; }
  /// Of all groups together.
  std::size_t most_blocks(std::size_t tokens, std::size_t step_tokens,
                          std::size_t block_size) const;
  /// The longest sequence that never holds more than `blocks` blocks; at most `most`.
  std::size_t longest_sequence(std::size_t blocks, std::size_t step_tokens, std::size_t block_size,
                               std::size_t most) const;

  friend bool operator==(const CacheGroups&, const CacheGroups&) = default;
};

/// Whether the cache has block `block` of a sequence in group `group`. Asked at most once per
/// block and group, in whatever order.
using HasBlock = std::function<bool(std::size_t group, std::size_t block)>;

/// In blocks at the start of a sequence.
struct GroupsHit {
  std::size_t blocks = 0;  ///< that need not be computed
  /// What the groups that are asked first have by themselves: those of full attention, or else
  /// those like the first. Longer, if other groups lack what is read behind it.
  std::size_t of_first = 0;
};

/// The most blocks at the start of a sequence that need not be computed: each group must have those
/// of them that the tokens behind read. A group may shorten the hit of another, until all agree.
///
/// \param most  the longest hit that would be of use, in blocks
GroupsHit longest_hit(const CacheGroups& groups, std::size_t most, std::size_t block_size,
                      const HasBlock& has);

}  // namespace kvhive
