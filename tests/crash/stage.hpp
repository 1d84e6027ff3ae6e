#pragma once
// A small pool with a past, and two processes in it: the victim, which is about to do something and
// die, and the survivor, which holds blocks of its own and wants to see them untouched.
//
//   device, 15 blocks    shared() 2, held by the survivor     idle() 3, held by nobody
//                        owned() 2, held by the victim        2 more the victim is filling
//                        6 free
//   host, 8 blocks       a copy of shared(), idle; 6 free

#include <initializer_list>
#include <optional>
#include <vector>

#include "pool/block_pool.hpp"
#include "tests/support/payload.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {

class Stage {
 public:
  static constexpr ProcessSlot kVictim{0}, kSurvivor{1}, kNewcomer{2};
  /// All of the above is in domain 0; blocks change to this one.
  static constexpr DomainId kOther{9};

  Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const PoolFds& fds() const { return fds_; }
  const PoolMemory& memory() const { return memory_; }
  BlockPool& victim() { return victim_; }
  BlockPool& survivor() { return survivor_; }

  /// A prompt of full blocks, each one token repeated.
  Prompt prompt(std::initializer_list<TokenId> blocks) const;
  // Made beforehand: hashing is not what is stepped through.
  const Prompt& shared() const { return shared_; }
  const Prompt& idle() const { return idle_; }
  const Prompt& owned() const { return owned_; }
  const Prompt& unknown() const { return unknown_; }      ///< not published
  const Prompt& continued() const { return continued_; }  ///< shared(), and two blocks more

  /// What the victim believes it holds, block by block. It must be right whenever it goes on.
  struct Holding {
    BlockId block;
    bool is_published;
    Hash128 name;
  };
  std::vector<Holding> holdings;
  void hold(std::span<const BlockId> blocks);
  void hold(std::span<const BlockId> blocks, std::span<const Hash128> names);
  void let_go(std::span<const BlockId> blocks);
  std::vector<BlockId> held_blocks() const;

  /// The victim looks at everything it holds, every byte, and gives it back. False if anything is
  /// not as it should be.
  bool victim_concludes();

  // From an operation's preparation to its run.
  std::vector<BlockId> blocks;
  PrefixHit hit;
  std::optional<Prompt> named_otherwise;

 private:
  PoolFds fds_;
  PoolMemory memory_;
  BlockPool victim_;
  BlockPool survivor_;
  Prompt shared_, idle_, owned_, unknown_, continued_;
};

/// Finds what is there of a prompt, computes the rest, publishes: its block table, held by `pool`.
std::vector<BlockId> compute(BlockPool& pool, const Prompt& prompt, Tier tier = Tier::device);

void fill_blocks(const BlockPool& pool, std::span<const BlockId> blocks,
                 std::span<const Hash128> names);

/// Bytes that another domain must never see, and whether there are any in a block.
void fill_with_secret(const PoolMemory& memory, std::span<const BlockId> blocks);
bool has_secret(const PoolMemory& memory, BlockId block);

}  // namespace kvhive::testing
