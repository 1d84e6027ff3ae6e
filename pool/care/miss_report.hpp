#pragma once
// Why a prompt's prefix is not found, block by block, for `kvhive pool why`. Reads only, while
// other processes work; needs the tokens object.

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "pool/eviction_journal.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// What has become of a block of the prompt. Where several apply, the first in this order.
enum class CacheStatus : std::uint8_t {
  present,    ///< a match finds it
  unhinted,   ///< published, but the index has lost its hint
  computing,  ///< a process is computing it right now
  orphaned,   ///< published after a parent that is gone; the parent computed anew has another uid
  collision,  ///< a block of the same hash holds other tokens, and is refused
  evicted,    ///< its block was taken for other content
  retired,    ///< its block was corrupt
  dropped,    ///< its block was discarded: the engine that held it had lost its device
  other_domain,  ///< another domain has it, and does not share
  never_seen,    ///< never computed, or evicted longer ago than the journal goes back
};
std::string_view to_string(CacheStatus status);

struct BlockStatus {
  CacheStatus status = CacheStatus::never_seen;
  /// present: where a match finds it in each tier, null block = not there. unhinted, computing,
  /// orphaned, collision: the block that was found, in its tier.
  std::array<BlockId, kTiers> blocks{kNullBlock, kNullBlock};
  std::uint32_t holders = 0;  ///< mask of the slots that hold any of these
  bool was_demoted = false;   ///< present: only in the host tier, since the device tier evicted it
  std::uint32_t slot =
      0;  ///< evicted, retired, dropped, demoted: the slot of the process that did it
  std::int64_t unix_ms = 0;  ///< evicted, retired, dropped, demoted: when
  DomainId domain{};         ///< other_domain
};

struct MissReport {
  std::vector<BlockStatus> blocks;  ///< one per full block of the prompt
  std::size_t matchable = 0;        ///< all but the last token can be cached
  std::size_t on_device = 0;        ///< blocks a match takes from the device tier, from the start
  std::size_t on_host = 0;          ///< and then from the host tier
  bool has_forgotten = false;       ///< the journal has overwritten older records

  std::size_t computed_from() const { return on_device + on_host; }  ///< block
};

MissReport explain_miss(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens);

}  // namespace kvhive
