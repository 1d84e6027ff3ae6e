#pragma once
// The pool as one process uses it: match, allocate, demote, publish, release. No operation asks
// another process anything, takes a lock or waits; a process stopped or killed at any instruction
// stops nobody. What a killed one held is returned by the reaper (pool/reaper.hpp).
//
// One BlockPool per process slot, used by one thread at a time. How often this process refers to a
// block is counted here, in private memory; shared memory only knows whether it does at all.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/expected.hpp"
#include "config/choices.hpp"
#include "hashing/block_hash.hpp"
#include "pool/eviction_journal.hpp"
#include "pool/free_blocks.hpp"
#include "pool/huge_page_allocator.hpp"
#include "pool/idle_order.hpp"
#include "pool/pool_memory.hpp"
#include "pool/prefix_index.hpp"

namespace kvhive {

/// The place after some number of full blocks of one sequence: what the next block's identity is
/// chained to.
struct Prefix {
  DomainId domain{};
  std::uint64_t uid = 0;    ///< content so far; exact, by induction from the domain's root
  std::uint32_t depth = 0;  ///< full blocks so far
};

/// Blocks found, in order, each now held once more by this process. `end` is where the sequence
/// goes on.
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

/// Content that allocate() threw out, and the block it was in. Its bytes are there until somebody
/// writes them, what else is known of it until the block is published anew or given back.
struct Evicted {
  BlockId block;
  Hash128 name;
  std::uint64_t uid = 0;
  DomainId domain{};
  DomainId heir{};  ///< whom the block was taken for
};

/// Evicted content on its way into the host tier. The caller copies the bytes.
struct Demotion {
  Evicted content;
  BlockId destination;    ///< a host block, held
  bool is_there = false;  ///< the host tier has it already: nothing to copy
};

/// Zeroes blocks of the device tier that only the device can reach; they are zero when it returns.
using EraseOnDevice = std::function<void(std::span<const BlockId>)>;

class BlockPool {
 public:
  /// `memory` must be attached for reading and writing, outlive the pool, and `slot` be ours alone.
  /// \param erase  needed where the device tier is not mapped
  BlockPool(const PoolMemory& memory, ProcessSlot slot, Scrub scrub = Scrub::on_domain_change,
            EraseOnDevice erase = {});
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// The empty prefix of `domain`.
  static Prefix root(DomainId domain);

  /// Longest published run of blocks in `tier` that continues `from`, already pinned: lookup and
  /// pin are one step.
  ///
  /// \param chain   block names from BlockHasher, one per block to look for; they find
  /// \param tokens  chain.size() * tokens_per_block token ids; with the parents they decide
  /// \param extras  one per block, or empty if no block has any
  /// \cost          about three cache lines a block, prefetched over the whole run
  /// \source        vLLM v1 FullAttentionManager.find_longest_cache_hit; of equal blocks the
  ///                first published is found
  PrefixHit match(Tier tier, const Prefix& from, std::span<const Hash128> chain,
                  std::span<const TokenId> tokens, std::span<const ExtraKey> extras = {});

  /// Takes a hit back as if it had never happened: the blocks keep their places in the release
  /// order.
  void cancel(const PrefixHit& hit);

  /// `count` blocks to write, all or none (Errc::pool_exhausted): never-cached ones first, last
  /// given back first, then idle cached ones, least recently released first; these lose their
  /// content.
  ///
  /// \param domain   whose content will be in them; nothing else can be published there. Bytes that
  ///                 another domain left are gone when this returns
  /// \param evicted  if given, what lost its block is appended, in order. Its bytes stay for now:
  ///                 the caller copies what it wants and then lets hand_over() (pool/scrub.hpp) see
  ///                 to blocks that are not `domain`'s yet, before anything is written there
  /// \cost           one comparison a block for the domain, unless there are such bytes
  /// \source  vLLM BlockPool.get_new_blocks, order of 2026 (PR #42656)
  Expected<std::vector<BlockId>> allocate(Tier tier, std::size_t count, DomainId domain = {},
                                          std::vector<Evicted>* evicted = nullptr);

  /// Finds a place in the host tier for evicted content, evicting there what was released longest
  /// ago, and writes down there what it will be. What is published in a tier still is not copied.
  /// Where there is not room for all, it is for what was evicted last: the starts of sequences,
  /// without which their ends are not found.
  ///
  /// \param evicted  by allocate(), in its order; their blocks still ours, and unpublished
  std::vector<Demotion> demote(std::span<const Evicted> evicted);

  /// The bytes are in place: the contents are what they were, uid and all, and idle.
  void finish_demotion(std::span<const Demotion> demotions);

  /// Says what will be in blocks being filled, for whoever asks why it is not found yet.
  void announce(std::span<const BlockId> blocks, std::span<const Hash128> names);

  /// Makes blocks this process has filled findable by everyone, as the continuation of `from`. Call
  /// it only when their bytes are in place. A block may be published once; from then on it never
  /// changes.
  ///
  /// \return  the prefix after them. Content published before lends its identity; the block stays
  ///          what it is (block tables are append-only).
  Prefix publish(const Prefix& from, std::span<const BlockId> blocks,
                 std::span<const Hash128> chain, std::span<const TokenId> tokens,
                 std::span<const ExtraKey> extras = {});

  /// Gives back one reference to each block, last block first. What nobody holds any more is idle
  /// (published) or free.
  ///
  /// \param blocks  in the order of their sequence; may mix tiers
  void release(std::span<const BlockId> blocks);

  /// One more reference to each block, for a second sequence with the same past.
  void fork(std::span<const BlockId> blocks);

  /// The block to write in place of `block`: itself if this process alone refers to it, once, and
  /// it is unpublished; otherwise a fresh block of the same tier, and the reference to `block` is
  /// given back after the caller copied.
  Expected<CopyOnWrite> make_writable(BlockId block);

  /// Blocks that allocate() could give out now. A hint: exact while no other process works.
  std::size_t available(Tier tier) const;
  /// Blocks of the tier that can be given out at all.
  std::size_t capacity(Tier tier) const;

  /// Whose bytes are in the block.
  DomainId domain_of(BlockId block) const {
    return {descriptor(block).domain.load(std::memory_order_relaxed)};
  }
  std::uint32_t references(BlockId block) const { return references_[block.value]; }
  std::uint32_t tokens_per_block() const { return memory_.geometry().tokens_per_block; }
  const PoolMemory& memory() const { return memory_; }
  BlockHasher hasher() const { return BlockHasher(memory_.control().header.secret); }
  SlotCounters& counters() const { return *counters_; }

  /// What allocate() would give out, in order (vLLM's free queue). For tests and replay; not while
  /// others work.
  std::vector<BlockId> free_queue(Tier tier) const;

 private:
  struct TierState {
    FreeBlocks free;
    IdleOrder idle;
  };
  struct Content;  // what a block is compared with

  BlockDescriptor& descriptor(BlockId block) const { return memory_.descriptors()[block.value]; }
  BlockWord load_word(BlockId block) const {
    return {descriptor(block).word.load(std::memory_order_acquire)};
  }
  TierState& tier(Tier tier) { return tiers_[std::size_t(tier)]; }

  Hash128 name_of(BlockId block) const {
    return {descriptor(block).hash_low.load(std::memory_order_relaxed),
            descriptor(block).hash_high.load(std::memory_order_relaxed)};
  }

  bool holds(BlockId block, const Content& content) const;
  bool pin_if(BlockId block, Tier tier, Hash128 hash, const Content& content);
  BlockId find_and_pin(Tier tier, Hash128 hash, const Content& content);
  std::uint64_t find_uid(Hash128 hash, const Content& content);
  bool pin(BlockId block, BlockWord seen);
  bool is_ours(BlockId block) const;
  bool keep_ours(BlockId block, BlockWord seen);
  std::uint64_t draw_serials(std::size_t count);
  void unpin(BlockId block);
  void give_back(BlockId block);
  void drop_references(std::span<const BlockId> blocks);
  bool take_free(Tier tier, std::size_t count, std::vector<BlockId>& taken);
  bool take(Tier tier, std::size_t count, std::vector<BlockId>& taken,
            std::vector<Evicted>* evicted);
  bool take_idle(Tier tier, std::size_t count, std::vector<BlockId>& taken,
                 std::vector<Evicted>* evicted);
  bool evict(BlockId block, BlockWord seen, std::vector<Evicted>* evicted);
  void take_over(BlockId block, Tier tier);
  void give_back_taken(std::span<const BlockId> taken);
  template <class Use>
  void with_content(const Evicted& evicted, Use&& use);
  std::vector<Demotion> worth_keeping(std::span<const Evicted> evicted);
  bool is_out_of_reach(BlockId block) const;
  void hand_over(BlockId block, DomainId domain) const;
  void count_used(Tier tier, std::int64_t change) const;
  void make_ready(BlockId block, Hash128 name);
  void write_content(BlockId block, Hash128 hash, const Content& content, std::uint64_t uid,
                     std::uint64_t serial);

  const PoolMemory& memory_;
  ProcessSlot slot_;
  Scrub scrub_;
  EraseOnDevice erase_;
  std::uint32_t my_bit_;
  PrefixIndex index_;
  EvictionJournal journal_;
  SlotCounters* counters_;
  std::vector<TierState> tiers_;
  /// By block; not zero = our bit is set.
  std::vector<std::uint32_t, HugePageAllocator<std::uint32_t>> references_;
  std::uint64_t last_serial_ = 0;  ///< all up to it were given out, as far as we know
  std::vector<BlockId> scratch_;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> left_out_;  ///< first places of candidates to come back to
};

}  // namespace kvhive
