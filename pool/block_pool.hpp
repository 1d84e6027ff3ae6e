#pragma once
// The operations of one process on the shared pool: match, allocate, demote, publish, release. No
// operation asks another process, takes a lock or waits. So a process that is stopped or killed at
// any instruction blocks no other process. The reaper releases the blocks of a killed process
// (pool/care/reaper.hpp).
//
// A process slot has one BlockPool, used by one thread at a time. Each operation has a file of its
// own: block_pool_match.cpp, _allocate.cpp, _publish.cpp, _demote.cpp, _release.cpp; the rest is in
// block_pool.cpp.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/expected.hpp"
#include "config/choices.hpp"
#include "hashing/block_hash.hpp"
#include "pool/block_lives.hpp"
#include "pool/processes/claims.hpp"
#include "pool/eviction/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/eviction/idle_order.hpp"
#include "pool/eviction/lanes.hpp"
#include "pool/own_references.hpp"
#include "pool/pool_memory.hpp"
#include "pool/prefix_index.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {

/// The position after the first `depth` full blocks of a sequence in one cache group. The identity
/// of the next block is chained to it.
struct Prefix {
  DomainId domain{};
  /// The uid of the last full block; the root of domain and group if there is none. Each block is
  /// compared with its parent's uid, so an equal uid means that all content up to here is equal.
  /// In a group that is not of full attention always the root: there each block has an extra key
  /// that stands for what is before it (hashing/sequence_names.hpp).
  std::uint64_t uid = 0;
  std::uint32_t depth = 0;  ///< number of full blocks up to here
  GroupId group{};
};

/// The blocks that match() found, in order. The process has one more reference to each of them. The
/// rest of the sequence starts at `end`.
struct PrefixHit {
  std::vector<BlockId> blocks;
  Prefix end;
};

/// The block to write (`destination`). If it is not `source`, the caller first copies the bytes
/// from source to destination.
struct CopyOnWrite {
  BlockId source;
  BlockId destination;
};

/// Content that allocate() evicted, and the block that held it. The block's bytes stay until the
/// block is written. Its descriptor keeps the fields that are not copied here until the block is
/// published again or released.
struct Evicted {
  BlockId block;
  Hash128 name;
  std::uint64_t uid = 0;
  DomainId domain{};
  DomainId new_domain{};  ///< the domain for which the block was allocated
};

/// Evicted content that moves to the host tier. The caller copies the bytes.
struct Demotion {
  Evicted content;
  BlockId destination;              ///< a host block that this process holds
  bool is_on_host_already = false;  ///< true = `destination` has this content: nothing to copy
};

/// Zeroes blocks of the device tier that only the device can write. They are zero when the function
/// returns.
using EraseOnDevice = std::function<void(std::span<const BlockId>)>;

class BlockPool {
 public:
  /// \param memory  attached for reading and writing; outlives this object
  /// \param slot    used by no other process or BlockPool
  /// \param erase   required if this process does not map the device tier and `scrub` is not
  ///                `never`
  /// \param model   this process's: whose blocks it matches and publishes
  BlockPool(const PoolMemory& memory, ProcessSlot slot, Scrub scrub = Scrub::on_domain_change,
            EraseOnDevice erase = {}, ModelId model = {});
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// The empty prefix of `domain` in a group. With `depth`: the prefix after so many blocks in a
  /// group whose blocks are not chained.
  ///
  /// \param resets  PoolMemory::resets() when the sequence was looked up
  static Prefix root(DomainId domain, GroupId group = {}, std::uint32_t depth = 0,
                     Resets resets = {});

  /// Finds and pins the longest run of published blocks in `tier` that continues `from`. The blocks
  /// are pinned as they are found, so they cannot be evicted in between.
  ///
  /// \param chain   block names from BlockHasher, one per block, to find candidates by
  /// \param tokens  chain.size() * tokens_per_block token ids; a candidate with other tokens or
  ///                another parent is no hit
  /// \param extras  the extra keys, one per block; empty if no block has an extra key
  /// \return        the blocks found; of several equal blocks, the one that was published first
  /// \cost          about three cache lines per block, prefetched
  /// \source        vLLM v1 FullAttentionManager.find_longest_cache_hit
  PrefixHit match(Tier tier, const Prefix& from, std::span<const Hash128> chain,
                  std::span<const TokenId> tokens, std::span<const ExtraKey> extras = {});

  /// Drops the references that match() took, as if it had not been called: the blocks keep their
  /// places in the release order.
  void cancel(const PrefixHit& hit);
  /// Says that blocks which match() found are used from now on, for the statistics of their lives.
  ///
  /// \param blocks  of the device tier, or null blocks, which are passed over
  /// \source        vLLM BlockPool.touch
  void touch(std::span<const BlockId> blocks) const { lives_.use(blocks); }

  /// Takes `count` blocks for this process to write, or none (Errc::pool_exhausted). Takes free
  /// blocks first (the last released first), then idle blocks (the least recently released first),
  /// which lose their content. If the domain has a maximum (PoolGeometry::limits) and has as many,
  /// its own idle blocks come first of all; and no idle block is taken that another domain has
  /// within its minimum.
  ///
  /// \param domain   only content of this domain can be published in the blocks. A block with
  ///                 bytes of another domain is zeroed before this returns, unless it is in
  ///                 `evicted`
  /// \param evicted  if given, the evicted contents are appended, in the order of their blocks.
  ///                 Their bytes stay for now: the caller copies what it wants to keep, and then
  ///                 calls change_domain() (pool/scrub.hpp) for blocks that are not in `domain`
  ///                 yet, before anything is written there
  /// \cost           one comparison of domains per block, if no block has to be zeroed
  /// \source         vLLM BlockPool.get_new_blocks, order of 2026 (PR #42656)
  [[nodiscard]] Expected<std::vector<BlockId>> allocate(Tier tier, std::size_t count,
                                                        DomainId domain = {},
                                                        std::vector<Evicted>* evicted = nullptr);

  /// Takes blocks of the host tier for evicted content and writes the content's identity into them.
  /// If necessary, this evicts the least recently released host blocks. Content that is still
  /// published in either tier is not copied. If there is not room for all, the content that was
  /// evicted last is kept: these are the starts of sequences, and without a start its end cannot be
  /// found.
  ///
  /// \param evicted  from allocate(), in the same order; their blocks have not been published or
  ///                 released since
  [[nodiscard]] std::vector<Demotion> demote(std::span<const Evicted> evicted);

  /// The caller has copied the bytes: publishes the contents in the host tier under their old uids,
  /// and releases the host blocks.
  void finish_demotion(std::span<const Demotion> demotions);

  /// Writes the names of the content that this process is computing into the blocks that it is
  /// filling, so that `kvhive pool why` can say "being computed". A match does not find the blocks
  /// before they are published.
  void announce(std::span<const BlockId> blocks, std::span<const Hash128> names);

  /// Publishes blocks that this process has filled: all processes can find them as the continuation
  /// of `from`. The blocks' bytes must be complete, because a published block never changes. A
  /// block can be published once.
  ///
  /// \return  the prefix after the blocks. If equal content was published before, the new block
  ///          gets the same uid; it still stays in the caller's table (tables are append-only).
  Prefix publish(const Prefix& from, std::span<const BlockId> blocks,
                 std::span<const Hash128> chain, std::span<const TokenId> tokens,
                 std::span<const ExtraKey> extras = {});

  /// Drops one reference to each block, last block first. A block that no process holds any more
  /// becomes idle if it is published, and free if not.
  ///
  /// \param blocks  in the order of their sequence; may be of both tiers
  ///                Each is held, or the process ends: an engine that does not know what it holds
  ///                must not go on
  void release(std::span<const BlockId> blocks);
  /// The same for callers who would rather be told. Errc::not_held: a block is none of the pool's,
  /// or is named more often than this process has references to it (a double free); then nothing
  /// is released. A block that was released and has been allocated again is held.
  [[nodiscard]] Expected<void> try_release(std::span<const BlockId> blocks);

  /// Adds one reference to each block, for a second sequence that begins with the same blocks.
  void fork(std::span<const BlockId> blocks);

  /// Returns the block to write in place of `block`. It is `block` itself if it is unpublished and
  /// this process has only one reference to it. Otherwise it is a fresh block of the same tier; the
  /// caller copies the bytes and then releases `block`.
  [[nodiscard]] Expected<CopyOnWrite> make_writable(BlockId block);

  /// How many blocks are free or idle. A hint: exact only while no other process works.
  std::size_t available(Tier tier) const;
  /// How many of them allocate() could take for the domain now, within the domains' limits.
  std::size_t available(Tier tier, DomainId domain) const;
  /// How many blocks the tier has, without retired blocks and the null block.
  std::size_t capacity(Tier tier) const;
  /// How many of them the domain can have at all, within the domains' limits.
  std::size_t capacity(Tier tier, DomainId domain) const;
  /// How many blocks of the device tier each domain has, and may have.
  const Lanes& lanes() const { return lanes_; }

  /// What this process computes, so that others need not.
  Claims claims() const { return {memory_, slot_}; }

  /// The uid of a published block that this process holds, for the prefix that ends with it.
  std::uint64_t uid_of(BlockId block) const;
  /// Whether this process holds the block and it is published.
  bool is_published(BlockId block) const;
  /// The domain whose bytes are in the block.
  DomainId domain_of(BlockId block) const { return view(block).domain(); }
  std::uint32_t references(BlockId block) const { return references_.count(block); }
  /// Whether this process has published what is in the block, which it holds. Of the device tier.
  bool is_own(BlockId block) const {
    const BlockView b = view(block);
    return b.author() == slot_ && b.serial() >= first_serial_;
  }
  std::uint32_t tokens_per_block() const { return model_.tokens_per_block; }
  const CacheGroups& groups() const { return model_.groups; }
  const PoolMemory& memory() const { return memory_; }
  BlockHasher hasher() const { return memory_.hasher(); }
  SlotCounters& counters() const { return *counters_; }

  /// The blocks that allocate() would take if no domain had limits, in order (vLLM's free queue).
  /// For tests and replay; must not be called while other processes work.
  std::vector<BlockId> free_queue(Tier tier) const;

 private:
  struct TierState {
    FreeBlocks free;
    IdleOrder idle;
  };
  /// What identifies one block's content: the prefix before it, its tokens, and its extra key.
  struct Content {
    Prefix parent;
    std::span<const TokenId> tokens;
    ExtraKey extra;
  };
  /// Contents of consecutive blocks, from the arguments of publish() or match().
  struct Contents {
    std::span<const TokenId> tokens;
    std::span<const ExtraKey> extras;
    std::size_t block_tokens;

    Content at(std::size_t i, const Prefix& parent) const {
      return {parent, tokens.subspan(i * block_tokens, block_tokens),
              extras.empty() ? kNoExtraKey : extras[i]};
    }
  };
  /// What tells one publication of a block from every other (pool/block_view.hpp).
  struct Publication {
    std::uint64_t serial;
    BlockWord word;
  };
  class MatchPrefetch;

  BlockView view(BlockId block) const { return memory_.block(block); }
  TierState& tier(Tier tier) { return tiers_[std::size_t(tier)]; }
  void count_used(Tier tier, std::int64_t change) const {
    add_used(counters_->used[std::size_t(tier)], change);
  }

  /// Moves `end` behind a block with this uid. Inline, so that `end` stays in registers: out of
  /// line a match took a tenth longer.
  void advance(Prefix& end, std::uint64_t uid) const {
    if (model_.groups.is_chained(end.group)) [[likely]]
      end.uid = uid;
    ++end.depth;
  }

  // match
  bool holds(BlockId block, BlockView b, const Content& content) const;
  bool pin_if(BlockId block, Tier tier, Hash128 hash, const Content& content);
  BlockId find_and_pin(Tier tier, Hash128 hash, const Content& content);
  std::uint64_t find_uid(Hash128 hash, const Content& content);
  static Publication look_at(BlockView block);
  bool pin(BlockId block, BlockView b, Publication seen);
  bool pinned_in_lane(BlockId block, std::uint64_t serial);
  bool has_pinned(BlockId block, std::uint64_t serial);
  bool take_pin_back(BlockId block);

  // allocate
  /// What an allocation takes, and for whom.
  struct Demand {
    Tier tier;
    std::size_t count;
    DomainId domain;
    std::vector<BlockId>& taken;
    std::vector<Evicted>* evicted;

    std::size_t missing() const { return count - taken.size(); }
  };
  /// Which idle blocks an allocation may evict.
  enum class Reach : std::uint8_t { own, all };
  bool take(Demand& demand);
  bool take_within_limits(Demand& demand);
  bool take_free(Demand& demand);
  bool take_idle(Demand& demand, Reach reach = Reach::all);
  bool collect_idle(const Demand& demand, Reach reach);
  void collect_oldest(const Demand& demand, Reach reach, IdleOrder::Chances chances);
  void merge_lanes(IdleOrder& idle, std::size_t count, std::vector<std::size_t>& most,
                   IdleOrder::Chances chances);
  void evict_candidates(Demand& demand);
  void prefetch_coming(const Demand& demand);
  void prefetch_to_evict(BlockId block) const;
  bool evict(Demand& demand, Candidate candidate);
  bool keep_if_referenced(BlockId block, BlockWord seen);
  void begin_filling(BlockId block, const Demand& demand);
  void renew_lives(std::span<const BlockId> taken) const;
  void free_taken(std::span<const BlockId> taken);
  void change_domains(std::span<const BlockId> taken, DomainId domain, std::span<Evicted> evicted);
  bool only_device_can_zero(BlockId block) const;
  void change_domain(BlockId block, DomainId domain) const;

  // publish
  /// Whether the block's word says that this process is filling it.
  bool is_filling(BlockId block) const { return view(block).word().is_filled_by(self_); }
  bool is_publishable(BlockId block, BlockWord word, const Prefix& end, std::uint64_t serial) const;
  std::uint64_t draw_serials(std::size_t count);
  void write_content(BlockId block, const BlockIdentity& identity, const Content& content);
  void make_ready(BlockId block, BlockWord word, Hash128 name);

  // demote
  template <class Use>
  void with_content(const Evicted& evicted, Use&& use);
  std::vector<Demotion> select_for_demotion(std::span<const Evicted> evicted);

  // release
  [[nodiscard]] bool drop_references(std::span<const BlockId> blocks);
  void unpin(BlockId block);
  void unpin_in_lane(BlockId block);
  void free_block(BlockId block);

  const PoolMemory& memory_;
  ModelCache model_;
  ProcessSlot slot_;
  Holder self_;             ///< this process's holder bit in block words, from slot_
  std::uint64_t hit_mark_;  ///< what a hit sets in a block's word besides: BlockWord::kHit, or 0
  Scrub scrub_;
  EraseOnDevice erase_;
  PrefixIndex index_;
  EvictionJournal journal_;
  BlockLives lives_;
  SlotCounters* counters_;
  Lanes lanes_;
  std::vector<TierState> tiers_;
  OwnReferences references_;
  /// The shared counter of serials must not be lower than this: this process has drawn serials up
  /// to here.
  std::uint64_t last_serial_ = 0;
  /// What this process publishes has serials from here on; what earlier processes of the slot have
  /// published has lower ones.
  std::uint64_t first_serial_;
  std::vector<BlockId> scratch_;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> skipped_;  ///< where each run of skipped candidates begins
};

}  // namespace kvhive
