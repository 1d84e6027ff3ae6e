#pragma once
// A small pool with content and two processes: the victim, which dies during an operation, and the
// survivor, whose blocks must not change.
//
//   device, 15 blocks    shared() 2, held by the survivor     idle() 3, not held
//                        owned() 2, held by the victim        2 more the victim is filling
//                        6 free
//   host, 8 blocks       a copy of shared(), idle; 6 free
//   claims               one of the victim, one of the survivor

#include <initializer_list>
#include <optional>
#include <vector>

#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "tests/support/payload.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {

class Stage {
 public:
  static constexpr ProcessSlot kVictim{0}, kSurvivor{1}, kNewcomer{2};
  /// All these blocks are in domain 0. Operations that change a block's domain change it to this
  /// one.
  static constexpr DomainId kOther{9};
  /// With lanes, the blocks of domain 0 are counted, too, and these two have limits.
  static constexpr DomainId kSure{1};     ///< a minimum of 2 blocks
  static constexpr DomainId kLimited{2};  ///< a maximum of 4
  /// With groups, all these blocks are in group 0, of full attention. In this one, of a window of
  /// two blocks, there are none.
  static constexpr GroupId kWindow{1};
  /// With models, all these blocks are of the first. The second, of three tokens a block, has this
  /// group and no blocks.
  static constexpr GroupId kOfSecond{1};
  static constexpr ModelId kSecond{1};
  /// With chances, blocks that were hit are spared once when they are to be evicted.
  /// With lives, those of all blocks are measured.
  enum class With : std::uint8_t { nothing, lanes, groups, models, chances, lives };

  explicit Stage(With with = With::nothing);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const PoolFds& fds() const { return fds_; }
  const PoolMemory& memory() const { return memory_; }
  BlockPool& victim() { return victim_; }
  BlockPool& survivor() { return survivor_; }

  /// A prompt of full blocks, each one token repeated.
  Prompt prompt(std::initializer_list<TokenId> blocks, DomainId domain = {}) const;
  // Made beforehand, so that the tests do not step through hashing.
  const Prompt& shared() const { return shared_; }
  const Prompt& idle() const { return idle_; }
  const Prompt& owned() const { return owned_; }
  const Prompt& unknown() const { return unknown_; }      ///< not published
  const Prompt& continued() const { return continued_; }  ///< shared(), and two blocks more

  /// The blocks that the victim holds, by its own record. The record must be right whenever a
  /// stopped victim goes on.
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

  /// The victim checks every byte of the blocks it holds, and releases them. False if anything is
  /// not as it should be.
  bool victim_concludes();

  // Values that an operation's preparation leaves for its run.
  std::vector<BlockId> blocks;
  PrefixHit hit;
  std::optional<Prompt> named_otherwise;
  std::optional<SequenceNames> names;
  Claim claim;  ///< the victim's

  static constexpr Hash128 kVictims{1, 1}, kSurvivors{2, 2}, kClaimedByNobody{3, 3};

 private:
  PoolFds fds_;
  PoolMemory memory_;
  BlockPool victim_;
  BlockPool survivor_;
  Prompt shared_, idle_, owned_, unknown_, continued_;
};

/// Matches a prompt, computes and publishes the rest. Returns the block table, which `pool` holds.
std::vector<BlockId> compute(BlockPool& pool, const Prompt& prompt, Tier tier = Tier::device);

void fill_blocks(const BlockPool& pool, std::span<const BlockId> blocks,
                 std::span<const Hash128> names);

/// Fills blocks with bytes that another domain must never see; tells whether a block has such
/// bytes.
void fill_with_secret(const PoolMemory& memory, std::span<const BlockId> blocks);
bool has_secret(const PoolMemory& memory, BlockId block);

}  // namespace kvhive::testing
