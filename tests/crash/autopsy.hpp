#pragma once
// Checks a pool after one of its processes was killed: calls the reaper, and then checks everything
// that another process or a new one may expect of the pool.

#include <functional>
#include <string>
#include <vector>

#include "tests/crash/operations.hpp"

namespace kvhive::testing {

using Complaints = std::vector<std::string>;

/// Checks that all blocks but those held by the processes in `holders` can be allocated, and that
/// the pool works. No process works meanwhile, and no process outside the mask holds a block.
Complaints examine_at_rest(const PoolMemory& memory, std::uint32_t holders);

class Autopsy {
 public:
  /// Called before the operation: records the pool's state.
  Autopsy(Stage& stage, const Operation& operation);

  /// Examines the pool itself or a copy of it, and changes it. Empty if all is well.
  Complaints examine(const PoolMemory& memory) const;

  /// For negative controls: another way to clean up after the victim.
  using Cleaner = std::function<void(const PoolMemory&)>;
  Cleaner clean_up;

 private:
  struct Block {
    BlockWord word;
    std::uint64_t uid;
    bool may_vanish;
    Hash128 name;
  };
  struct Findable {
    Prompt prompt;
    Tier tier;
    std::size_t blocks;  ///< at least this many are found, from the start
  };

  void check_blocks(const PoolMemory& memory, Complaints& complaints) const;
  void check_contents(BlockPool& newcomer, Complaints& complaints) const;

  std::vector<Block> before_;
  std::vector<std::uint64_t> sums_;  ///< sums of the counters before the operation
  std::vector<Findable> findable_;
};

}  // namespace kvhive::testing
