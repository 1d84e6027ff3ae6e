#pragma once
// Explains, block by block, why a prompt's prefix is not found, for `kvhive pool why`. Only reads,
// also while other processes work. Needs the tokens object.

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "pool/eviction/eviction_journal.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// What has happened to a block of the prompt. If several apply, the first in this order.
enum class CacheStatus : std::uint8_t {
  present,       ///< a match finds it
  unhinted,      ///< published, but the index has lost its hint
  computing,     ///< a process is computing it right now
  forgotten,     ///< published before the prefix cache was reset, or by a sequence that ran then
  orphaned,      ///< published, but its parent block has been evicted; a match stops there
  collision,     ///< a block of the same hash holds other tokens, so a match refuses it
  evicted,       ///< its block was taken for other content
  retired,       ///< its block was corrupt
  dropped,       ///< its block was discarded: the engine that held it had lost its device
  other_domain,  ///< published in another domain, whose blocks this domain must not use
  other_salt,    ///< published in this domain under another cache salt, or without one
  never_seen,    ///< never computed, or evicted longer ago than the journal goes back
};
std::string_view to_string(CacheStatus status);

struct BlockStatus {
  CacheStatus status = CacheStatus::never_seen;
  GroupId group{};
  std::size_t index = 0;  ///< in the prompt
  /// By tier. present: the block that a match finds in this tier, or the null block. unhinted,
  /// computing, orphaned, collision: the block that has this status, in its tier.
  std::array<BlockId, kTiers> blocks{kNullBlock, kNullBlock};
  std::uint32_t holders = 0;  ///< mask of the slots that hold any of these blocks
  bool was_demoted = false;   ///< present, but only in the host tier: the device tier evicted it
  std::uint32_t slot = 0;  ///< evicted, retired, dropped, demoted: slot of the process that did it
  std::int64_t unix_ms = 0;  ///< evicted, retired, dropped, demoted: when
  DomainId domain{};         ///< other_domain: the domain that has it
};

struct MissReport {
  /// One per full block of the prompt and cache group: first all of group 0, then of group 1, ...
  std::vector<BlockStatus> blocks;
  std::size_t matchable = 0;  ///< blocks that a match may take; the last token is always computed
  /// Index of the first block that an engine has to compute. What it reads before, all groups have.
  std::size_t computed_from = 0;
  std::size_t on_device = 0;   ///< blocks that a match takes from the device tier
  std::size_t on_host = 0;     ///< blocks that it takes from the host tier
  bool has_forgotten = false;  ///< the journal has overwritten older records

  /// The block for whose sake no more is found: the first that is missing of those that would be
  /// read if block computed_from were found, too. An index of `blocks`; nothing if all that is
  /// matchable is found.
  std::optional<std::size_t> decisive;
};

/// \param cache_salt  the request's; empty = none
/// \param adapter     the name of the request's adapter; empty = none
MissReport explain_miss(const PoolMemory& memory, DomainId domain, std::span<const TokenId> tokens,
                        std::string_view cache_salt = {}, std::string_view adapter = {},
                        ModelId model = {});

}  // namespace kvhive
