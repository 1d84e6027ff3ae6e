#pragma once
// What can be wrong with one block, seen from outside: what fsck reports and repair acts upon.
// Reads only, while others work; a block that changes under the eye is not judged.

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pool/pool_memory.hpp"

namespace kvhive {

class Soundness {
 public:
  /// Looks once at all blocks to learn who bears which name.
  explicit Soundness(const PoolMemory& memory);

  /// What no process ever writes into a word. `attached` is the mask of slots that may hold blocks.
  static std::vector<std::string> word_faults(BlockId block, BlockWord word,
                                              std::uint32_t attached);

  /// What is wrong with a published block's name, place and tokens (if this process may see them);
  /// nothing if it was not the same published block all the while.
  std::vector<std::string> identity_faults(BlockId block);

  /// Whether a published block has a release stamp that was never given out: no scan would find it.
  /// A matter of its place in the order, not of its content.
  bool has_future_stamp(BlockId block) const;

  /// Published blocks whose parent is gone, and token bytes hashed, in identity_faults() so far.
  std::uint64_t orphans() const { return orphans_; }
  std::uint64_t bytes_checked() const { return bytes_checked_; }

  const std::vector<BlockId>& ready() const { return ready_; }

  BlockWord word(BlockId block) const {
    return {descriptor(block).word.load(std::memory_order_acquire)};
  }
  Hash128 name_of(BlockId block) const;

 private:
  struct Parent {
    Hash128 name;
    std::uint32_t depth = 0;  ///< of its child
    std::uint16_t domain = 0;
  };

  const BlockDescriptor& descriptor(BlockId block) const {
    return memory_.descriptors()[block.value];
  }
  template <class Look>
  bool stably(BlockId block, Look&& look) const;
  std::vector<std::string> faults_now(BlockId block);
  std::optional<Parent> parent_of(const BlockDescriptor& d, std::uint64_t parent_uid) const;
  void compare_with_parent(BlockId block, const Parent& parent, std::vector<std::string>& faults);
  void compare_with_twin(BlockId block, std::uint64_t uid, std::vector<std::string>& faults) const;
  BlockId bearer_of(std::uint64_t uid) const;
  bool hash_fits(BlockId block, Hash128 parent);

  const PoolMemory& memory_;
  BlockHasher hasher_;
  std::vector<BlockId> ready_;
  std::unordered_map<std::uint64_t, BlockId> by_uid_;  ///< the first of them
  std::unordered_map<BlockId, BlockId> rival_;         ///< of such a first one, under another name
  bool was_orphan_ = false;
  std::uint64_t orphans_ = 0, bytes_checked_ = 0;
};

}  // namespace kvhive
