#pragma once
// Uses the pool as an engine does: it matches, allocates, moves evicted content to the host tier,
// fills, publishes, reads and releases blocks, and checks every byte it reads. For tests with
// several processes or threads.

#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "tests/support/keep_evicted.hpp"
#include "tests/support/payload.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {

/// What a worker has done so far. May lie in memory that the test shares with it.
struct WorkerProgress {
  std::atomic<std::uint64_t> requests{0};  ///< requests served
  std::atomic<std::uint64_t> shortages{
      0};                                  ///< requests refused because the pool had too few blocks
  std::atomic<std::uint64_t> verified{0};  ///< matched blocks whose bytes were all right
  std::atomic<std::uint64_t> wrong{0};     ///< matched blocks with other bytes
  std::atomic<bool> must_stop{false};
};

/// How much a worker holds at a time: at most `sequences` prompts of at most `blocks` blocks.
struct WorkerLoad {
  std::uint32_t sequences = 3;
  std::uint32_t blocks = 6;
  std::uint32_t vocabulary = 3;  ///< few tokens: many shared prefixes and duplicates
  /// A sequence may hold one partial block more.
  std::uint32_t most_blocks() const { return sequences * (blocks + 1); }
  /// More, in a pool with a second cache group.
  static constexpr std::uint32_t kInWindow = 3;
};

class PoolWorker {
 public:
  PoolWorker(const PoolMemory& memory, ProcessSlot slot, std::uint32_t seed, WorkerLoad load,
             WorkerProgress& progress)
      : memory_(memory), pool_(memory, slot), random_(seed), load_(load), progress_(progress) {}

  void run_until_told() {
    while (!progress_.must_stop.load(std::memory_order_relaxed)) step();
  }
  void run(std::uint64_t requests) {
    while (progress_.requests.load(std::memory_order_relaxed) < requests) step();
  }

  /// Runs until this many requests were served or refused.
  void attempt(std::uint64_t requests) {
    while (progress_.requests.load(std::memory_order_relaxed) +
               progress_.shortages.load(std::memory_order_relaxed) <
           requests)
      step();
  }

  void release_everything() {
    while (!held_.empty()) finish();
  }

  BlockPool& pool() { return pool_; }

 private:
  void step() {
    if (held_.size() >= load_.sequences) finish();
    if (below(8) == 0) swap_out();
    if (below(8) == 0) look_and_leave();
    if (memory_.geometry().models[0].groups.count > 1 && below(2) == 0) serve_in_window();
    if (!held_.empty() && below(4) == 0)
      fork();
    else
      admit();
  }

  struct Held {
    std::vector<BlockId> blocks;
    std::vector<Hash128> chain;  ///< names of the published blocks
  };

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  Prompt draw_prompt() {
    std::vector<TokenId> tokens;
    for (std::uint32_t left = 1 + below(load_.blocks); left != 0; --left) {
      // The smaller of two draws: some prefixes are requested more often than others.
      const auto token =
          static_cast<TokenId>(std::min(below(load_.vocabulary), below(load_.vocabulary)));
      tokens.insert(tokens.end(), pool_.tokens_per_block(), token);
    }
    return Prompt(pool_, std::move(tokens), DomainId{std::uint16_t(below(2))});
  }

  void admit() {
    const Prompt prompt = draw_prompt();
    const PrefixHit hit = match_all(pool_, prompt);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i) verify(hit.blocks[i], prompt.chain[i]);

    const std::size_t missing = prompt.full_blocks() - hit.blocks.size();
    evicted_.clear();
    auto fresh = pool_.allocate(Tier::device, missing + below(2), prompt.domain, &evicted_);
    if (!fresh) {
      bump(progress_.shortages);
      pool_.cancel(hit);
      if (!held_.empty()) finish();
      return;
    }
    keep_evicted(pool_, evicted_);
    Held held{hit.blocks, prompt.chain};
    held.blocks.insert(held.blocks.end(), fresh->begin(), fresh->end());
    publish(hit.end, prompt, hit.blocks.size(), std::span(*fresh).first(missing));
    held_.push_back(std::move(held));
    bump(progress_.requests);
  }

  void publish(const Prefix& from, const Prompt& prompt, std::size_t first,
               std::span<const BlockId> blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) fill(blocks[i], prompt.chain[first + i]);
    pool_.publish(from, blocks, prompt.names(first, blocks.size()),
                  prompt.of_blocks(first, blocks.size()));
  }

  /// Computes a prompt's blocks into the host tier, publishes and releases them.
  void swap_out() {
    if (pool_.capacity(Tier::host) == 0) return;
    const Prompt prompt = draw_prompt();
    const PrefixHit hit = match_all(pool_, prompt, Tier::host);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i) verify(hit.blocks[i], prompt.chain[i]);
    auto fresh =
        pool_.allocate(Tier::host, prompt.full_blocks() - hit.blocks.size(), prompt.domain);
    if (fresh) {
      publish(hit.end, prompt, hit.blocks.size(), *fresh);
      pool_.release(joined_ids(hit.blocks, *fresh));
    } else {
      pool_.cancel(hit);
    }
  }

  /// A request that is cancelled right after its match.
  void look_and_leave() {
    const Prompt prompt = draw_prompt();
    const PrefixHit hit = match_all(pool_, prompt);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i) verify(hit.blocks[i], prompt.chain[i]);
    pool_.cancel(hit);
  }

  /// A sequence in the second cache group, whose blocks are found without those before them: takes
  /// what is there, computes the rest, and keeps no more than two blocks at a time.
  void serve_in_window() {
    const GroupId group{1};
    const Prompt prompt = draw_prompt();
    SequenceNames names(memory_.geometry().models[0].groups, prompt.domain,
                        pool_.tokens_per_block());
    names.extend(pool_.hasher(), prompt.tokens);
    const auto extras = names.extras(group);
    std::vector<BlockId> window;
    for (std::uint32_t i = below(2); i < prompt.full_blocks(); ++i) {
      const Prefix place = BlockPool::root(prompt.domain, group, i);
      const auto name = names.names(group).subspan(i, 1);
      const auto extra = extras.empty() ? extras : extras.subspan(i, 1);
      PrefixHit hit = pool_.match(Tier::device, place, name, prompt.of_blocks(i, 1), extra);
      if (hit.blocks.empty()) {
        evicted_.clear();
        auto fresh = pool_.allocate(Tier::device, 1, prompt.domain, &evicted_);
        if (!fresh) break;
        keep_evicted(pool_, evicted_);
        fill(fresh->front(), name[0]);
        pool_.publish(place, *fresh, name, prompt.of_blocks(i, 1), extra);
        hit.blocks = *fresh;
      }
      verify(hit.blocks[0], name[0]);
      window.push_back(hit.blocks[0]);
      if (window.size() <= 2) continue;
      pool_.release({{window.front()}});
      window.erase(window.begin());
    }
    pool_.release(window);
  }

  /// A second sequence with the blocks of a running one, but a copy of the last block to write to.
  void fork() {
    Held copy = held_[below(std::uint32_t(held_.size()))];
    pool_.fork(copy.blocks);
    BlockId& last = copy.blocks.back();
    if (const auto fresh = pool_.make_writable(last)) {
      copy_payload(memory_, fresh->source, fresh->destination);
      pool_.release({{fresh->source}});
      last = fresh->destination;
    } else {
      bump(progress_.shortages);
    }
    held_.push_back(std::move(copy));
  }

  void finish() {
    std::swap(held_[below(std::uint32_t(held_.size()))], held_.back());
    const Held& held = held_.back();
    for (std::size_t i = 0; i < held.chain.size(); ++i) verify(held.blocks[i], held.chain[i]);
    pool_.release(held.blocks);
    held_.pop_back();
  }

  void fill(BlockId block, Hash128 name) { fill_payload(memory_, block, name); }
  void verify(BlockId block, Hash128 name) {
    bump(is_payload_right(memory_, block, name) ? progress_.verified : progress_.wrong);
  }

  static void bump(std::atomic<std::uint64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  const PoolMemory& memory_;
  BlockPool pool_;
  std::mt19937 random_;
  WorkerLoad load_;
  WorkerProgress& progress_;
  std::vector<Held> held_;
  std::vector<Evicted> evicted_;
};

}  // namespace kvhive::testing
