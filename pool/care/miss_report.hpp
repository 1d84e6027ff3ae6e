#pragma once
// Why a prompt's prefix is not found, block by block: what `kvhive pool why` shows. Reads only,
// while others work; needs the tokens object.

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "pool/eviction_journal.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

enum class Verdict : std::uint8_t {
  present,    ///< a match finds it
  unhinted,   ///< published, but the index has lost it
  computing,  ///< somebody is computing it right now
  orphaned,   ///< published after a parent that is gone; computed anew, that one has another name
  collision,  ///< a block of the same hash holds other tokens, and is refused
  evicted,    ///< it was there
  retired,    ///< it was there, and was damaged
  dropped,    ///< it was there, and its device was lost
  other_domain,  ///< it is there, for others than the one who asks
  never_seen,    ///< or thrown out longer ago than the journal goes back
};
std::string_view to_string(Verdict verdict);

struct BlockVerdict {
  Verdict verdict = Verdict::never_seen;
  /// present: where a match finds it in each tier, null block = not there; unhinted, computing,
  /// orphaned, collision: the block meant, in its tier.
  std::array<BlockId, kTiers> blocks{kNullBlock, kNullBlock};
  std::uint32_t holders = 0;  ///< mask of the slots that hold any of these
  bool was_demoted = false;   ///< present: on the host only, since the device tier evicted it
  std::uint32_t slot = 0;     ///< evicted, retired, dropped, demoted: who did it
  std::int64_t unix_ms = 0;   ///< evicted, retired, dropped, demoted: when
  std::uint16_t domain = 0;   ///< other_domain
};

struct MissReport {
  std::vector<BlockVerdict> blocks;  ///< one per full block of the prompt
  std::size_t matchable = 0;         ///< all but the last token can be cached
  std::size_t on_device = 0;         ///< blocks a match takes from the device tier, from the start
  std::size_t on_host = 0;           ///< and then from the host tier
  bool has_forgotten = false;        ///< the journal does not go back to the beginning

  std::size_t computed_from() const { return on_device + on_host; }  ///< block
};

MissReport explain_miss(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens);

}  // namespace kvhive
