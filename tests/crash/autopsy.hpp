#pragma once
// What must be true of a pool after a process in it was killed: the reaper is called, and then
// everything a survivor or a newcomer may expect is tried.

#include <functional>
#include <string>
#include <vector>

#include "tests/crash/operations.hpp"

namespace kvhive::testing {

using Complaints = std::vector<std::string>;

/// While nobody works, and only processes in the mask hold anything: that all else can be had, and
/// that the pool works.
Complaints examine_at_rest(const PoolMemory& memory, std::uint32_t holders);

class Autopsy {
 public:
  /// Before the operation: takes down what was there.
  Autopsy(Stage& stage, const Operation& operation);

  /// On the pool itself or on a copy of it, which is not the same afterwards. Empty if all is well.
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
    std::size_t blocks;  ///< at least so many from the start
  };

  void check_blocks(const PoolMemory& memory, Complaints& complaints) const;
  void check_contents(BlockPool& newcomer, Complaints& complaints) const;

  std::vector<Block> before_;
  std::vector<std::uint64_t> sums_;  ///< of the counters
  std::vector<Findable> findable_;
};

}  // namespace kvhive::testing
