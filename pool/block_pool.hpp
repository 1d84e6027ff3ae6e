#pragma once
// The pool as one process uses it: match, allocate, demote, publish, release. No operation asks
// another process, takes a lock or waits, so a process that is stopped or killed at any instruction
// blocks no other one. The reaper returns what a killed process held (pool/care/reaper.hpp).
//
// One BlockPool per process slot, used by one thread at a time. Each operation has a file of its
// own: block_pool_match.cpp, _allocate.cpp, _publish.cpp, _demote.cpp, _release.cpp; the rest is in
// block_pool.cpp.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/expected.hpp"
#include "config/choices.hpp"
#include "hashing/block_hash.hpp"
#include "pool/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/idle_order.hpp"
#include "pool/own_references.hpp"
#include "pool/pool_memory.hpp"
#include "pool/prefix_index.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {

/// The position after some number of full blocks of one sequence. The next block's identity is
/// chained to it.
struct Prefix {
  DomainId domain{};
  std::uint64_t uid = 0;    ///< content so far; exact, by induction from the domain's root
  std::uint32_t depth = 0;  ///< full blocks so far
};

/// Blocks found, in order, each now held once more by this process. The sequence goes on at `end`.
struct PrefixHit {
  std::vector<BlockId> blocks;
  Prefix end;
};

/// A block that had to be copied before it could be written. The caller copies the bytes, source to
/// destination.
struct CopyOnWrite {
  BlockId source;
  BlockId destination;
};

/// Content that allocate() evicted, and the block it was in. The bytes stay until the block is
/// written, the descriptor's other fields until it is published anew or released.
struct Evicted {
  BlockId block;
  Hash128 name;
  std::uint64_t uid = 0;
  DomainId domain{};
  DomainId new_domain{};  ///< for which the block was allocated
};

/// Evicted content on its way into the host tier. The caller copies the bytes.
struct Demotion {
  Evicted content;
  BlockId destination;              ///< a host block, held
  bool is_on_host_already = false;  ///< the host tier has this content: nothing to copy
};

/// Zeroes blocks of the device tier that only the device can write. They are zero when it returns.
using EraseOnDevice = std::function<void(std::span<const BlockId>)>;

class BlockPool {
 public:
  /// \param memory  attached for reading and writing; outlives the pool
  /// \param slot    used by no other process or BlockPool
  /// \param erase   needed where the device tier is not mapped, unless `scrub` is never
  BlockPool(const PoolMemory& memory, ProcessSlot slot, Scrub scrub = Scrub::on_domain_change,
            EraseOnDevice erase = {});
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// The empty prefix of `domain`.
  static Prefix root(DomainId domain);

  /// Longest published run of blocks in `tier` that continues `from`, already pinned: lookup and
  /// pin are one step.
  ///
  /// \param chain   block names from BlockHasher, one per block; they lead to candidates
  /// \param tokens  chain.size() * tokens_per_block token ids; a candidate with other tokens or
  ///                another parent is no hit
  /// \param extras  one per block, or empty if no block has any
  /// \cost          about three cache lines a block, prefetched over the whole run
  /// \source        vLLM v1 FullAttentionManager.find_longest_cache_hit; of equal blocks the
  ///                first published is found
  PrefixHit match(Tier tier, const Prefix& from, std::span<const Hash128> chain,
                  std::span<const TokenId> tokens, std::span<const ExtraKey> extras = {});

  /// Undoes a hit as if it had never happened: the blocks keep their places in the release order.
  void cancel(const PrefixHit& hit);

  /// `count` blocks to write, all or none (Errc::pool_exhausted): free ones first, last released
  /// first, then idle ones, least recently released first; these lose their content.
  ///
  /// \param domain   whose content will be in them; no other can be published there. Bytes that
  ///                 another domain left are zeroed when this returns
  /// \param evicted  if given, the evicted contents are appended, in the order of their blocks.
  /// Their
  ///                 bytes stay for now: the caller copies what it wants to keep, and then calls
  ///                 change_domain() (pool/scrub.hpp) for blocks that are not in `domain` yet,
  ///                 before anything is written there
  /// \cost           one comparison a block for the domain, unless there are such bytes
  /// \source  vLLM BlockPool.get_new_blocks, order of 2026 (PR #42656)
  [[nodiscard]] Expected<std::vector<BlockId>> allocate(Tier tier, std::size_t count,
                                                        DomainId domain = {},
                                                        std::vector<Evicted>* evicted = nullptr);

  /// Takes blocks of the host tier for evicted content, evicting there what was released longest
  /// ago, and writes the content's identity there. Content that a tier still has is not copied. If
  /// there is not room for all, what was evicted last is kept: the starts of sequences, without
  /// which their ends are not found.
  ///
  /// \param evicted  from allocate(), in its order; their blocks not published or released since
  [[nodiscard]] std::vector<Demotion> demote(std::span<const Evicted> evicted);

  /// The bytes are copied: publishes the contents in the host tier under their old uids, and
  /// releases the blocks.
  void finish_demotion(std::span<const Demotion> demotions);

  /// Writes the names of what will be in blocks that this process is filling, so that `pool why`
  /// can say "being computed". Nothing is found by them before the block is published.
  void announce(std::span<const BlockId> blocks, std::span<const Hash128> names);

  /// Makes blocks that this process has filled findable by all processes, as the continuation of
  /// `from`. Their bytes must be in place: from then on the block never changes. A block can be
  /// published once.
  ///
  /// \return  the prefix after them. Content that was published before gives its uid to the new
  ///          block, too; the block itself stays in the caller's table (tables are append-only).
  Prefix publish(const Prefix& from, std::span<const BlockId> blocks,
                 std::span<const Hash128> chain, std::span<const TokenId> tokens,
                 std::span<const ExtraKey> extras = {});

  /// Drops one reference to each block, last block first. A block that no process holds any more is
  /// idle (published) or free.
  ///
  /// \param blocks  in the order of their sequence; may mix tiers
  void release(std::span<const BlockId> blocks);

  /// One more reference to each block, for a second sequence with the same past.
  void fork(std::span<const BlockId> blocks);

  /// The block to write in place of `block`: itself if only this process refers to it, once, and it
  /// is unpublished; otherwise a fresh block of the same tier, and the caller releases `block`
  /// after it has copied the bytes.
  [[nodiscard]] Expected<CopyOnWrite> make_writable(BlockId block);

  /// Blocks that allocate() could return now. A hint: exact while no other process works.
  std::size_t available(Tier tier) const;
  /// Blocks of the tier that are not retired (nor the null block).
  std::size_t capacity(Tier tier) const;

  /// The domain whose bytes are in the block.
  DomainId domain_of(BlockId block) const { return view(block).domain(); }
  std::uint32_t references(BlockId block) const { return references_.count(block); }
  std::uint32_t tokens_per_block() const { return memory_.geometry().tokens_per_block; }
  const PoolMemory& memory() const { return memory_; }
  BlockHasher hasher() const { return BlockHasher(memory_.control().header.secret); }
  SlotCounters& counters() const { return *counters_; }

  /// What allocate() would return, in order (vLLM's free queue). For tests and replay; not while
  /// other processes work.
  std::vector<BlockId> free_queue(Tier tier) const;

 private:
  struct TierState {
    FreeBlocks free;
    IdleOrder idle;
  };
  /// One block's content as far as identity goes: its past, its tokens, and its extra key.
  struct Content {
    Prefix parent;
    std::span<const TokenId> tokens;
    ExtraKey extra;
  };
  /// Contents of consecutive blocks: what publish() and match() are given.
  struct Contents {
    std::span<const TokenId> tokens;
    std::span<const ExtraKey> extras;
    std::size_t block_tokens;

    Content at(std::size_t i, const Prefix& parent) const {
      return {parent, tokens.subspan(i * block_tokens, block_tokens),
              extras.empty() ? kNoExtraKey : extras[i]};
    }
  };
  class MatchPrefetch;

  BlockView view(BlockId block) const { return memory_.block(block); }
  TierState& tier(Tier tier) { return tiers_[std::size_t(tier)]; }
  void count_used(Tier tier, std::int64_t change) const {
    add_used(counters_->used[std::size_t(tier)], change);
  }

  // match
  bool holds(BlockId block, const Content& content) const;
  bool pin_if(BlockId block, Tier tier, Hash128 hash, const Content& content);
  BlockId find_and_pin(Tier tier, Hash128 hash, const Content& content);
  std::uint64_t find_uid(Hash128 hash, const Content& content);
  bool pin(BlockId block, BlockWord seen);

  // allocate
  bool take(Tier tier, std::size_t count, std::vector<BlockId>& taken,
            std::vector<Evicted>* evicted);
  bool take_free(Tier tier, std::size_t count, std::vector<BlockId>& taken);
  bool take_idle(Tier tier, std::size_t count, std::vector<BlockId>& taken,
                 std::vector<Evicted>* evicted);
  bool collect_idle(Tier tier, std::size_t count);
  void evict_candidates(std::vector<BlockId>& taken, std::vector<Evicted>* evicted);
  bool evict(BlockId block, BlockWord seen, std::vector<Evicted>* evicted);
  bool keep_if_referenced(BlockId block, BlockWord seen);
  void begin_filling(BlockId block, Tier tier);
  void free_taken(std::span<const BlockId> taken);
  void change_domains(std::span<const BlockId> taken, DomainId domain, std::span<Evicted> evicted);
  bool only_device_can_zero(BlockId block) const;
  void change_domain(BlockId block, DomainId domain) const;

  // publish
  /// Whether this process is filling the block, by its word.
  bool is_filling(BlockId block) const { return view(block).word().is_filled_by(self_); }
  bool is_publishable(BlockId block, const Prefix& end, std::uint64_t serial) const;
  std::uint64_t draw_serials(std::size_t count);
  void write_content(BlockId block, const BlockIdentity& identity, const Content& content);
  void make_ready(BlockId block, Hash128 name);

  // demote
  template <class Use>
  void with_content(const Evicted& evicted, Use&& use);
  std::vector<Demotion> select_for_demotion(std::span<const Evicted> evicted);

  // release
  [[nodiscard]] bool drop_references(std::span<const BlockId> blocks);
  void unpin(BlockId block);
  void free_block(BlockId block);

  const PoolMemory& memory_;
  ProcessSlot slot_;
  Holder self_;  ///< slot_ in blocks' words
  Scrub scrub_;
  EraseOnDevice erase_;
  PrefixIndex index_;
  EvictionJournal journal_;
  SlotCounters* counters_;
  std::vector<TierState> tiers_;
  OwnReferences references_;
  /// All serials up to this one were drawn, as far as this process knows.
  std::uint64_t last_serial_ = 0;
  std::vector<BlockId> scratch_;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> skipped_;  ///< first places of candidates to come back to
};

}  // namespace kvhive
