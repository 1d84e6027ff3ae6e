#pragma once
// Finds the faults of one block. fsck reports them, and repair retires the block. Only reads, also
// while other processes work; a block that changes while it is read is not judged.

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

class Soundness {
 public:
  /// Reads all blocks once, to learn which block has which uid.
  explicit Soundness(const PoolMemory& memory);

  /// Faults of a block's word: values that no process ever writes. `attached` is the mask of slots
  /// that may hold blocks; `policy` is the pool's.
  static std::vector<std::string> word_faults(BlockId block, BlockWord word, std::uint32_t attached,
                                              EvictionPolicy policy);

  /// Faults of a published block's name, depth, parent and, if this process maps the tokens object,
  /// tokens. Empty if the block has changed while it was read.
  std::vector<std::string> identity_faults(BlockId block);

  /// Whether a published block has a release stamp that was never drawn, so that no scan finds it.
  /// Its content is not in doubt.
  bool has_future_stamp(BlockId block) const;

  /// What identity_faults() has counted so far: published blocks whose parent is gone, and bytes of
  /// tokens that it has hashed.
  std::uint64_t orphans() const { return orphans_; }
  std::uint64_t bytes_checked() const { return bytes_checked_; }

  const std::vector<BlockId>& ready() const { return ready_; }

 private:
  struct Parent {
    Hash128 name;
    std::uint32_t depth = 0;  ///< the depth that its child must have
    std::uint16_t domain = 0;
    GroupId group{};
  };

  std::vector<std::string> faults_now(BlockId block);
  std::optional<Parent> parent_of(BlockView block, std::uint64_t parent_uid) const;
  /// \param group  the block's, which has been checked: the descriptor may have changed since
  void compare_with_parent(BlockId block, GroupId group, const Parent& parent,
                           std::vector<std::string>& faults);
  void compare_with_twin(BlockId block, std::uint64_t uid, std::vector<std::string>& faults) const;
  BlockId block_with(std::uint64_t uid) const;
  bool hash_fits(BlockId block, GroupId group, Hash128 parent);

  const PoolMemory& memory_;
  BlockHasher hasher_;
  std::vector<BlockId> ready_;
  std::unordered_map<std::uint64_t, BlockId> by_uid_;  ///< the first block with the uid
  /// From a block of by_uid_ to another block with the same uid but another name.
  std::unordered_map<BlockId, BlockId> rival_;
  bool was_orphan_ = false;
  std::uint64_t orphans_ = 0, bytes_checked_ = 0;
};

}  // namespace kvhive
