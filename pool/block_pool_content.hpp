#pragma once
// Compares and writes what is in a block, for the sources of BlockPool. A part of each match and
// publication, block by block: called out of line, with what they are given on the stack, they made
// both a tenth slower. What is on the stack has been stored, and the atomic exchange that pins a
// block waits for all stores before it.

#include "base/kill_point.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

/// Whether the block holds this content. The answer is valid only if the block is of the same
/// publication before and after the call (read_stably(), or pin() with what look_at() returned).
/// `b` is the block's view: GCC would compute it anew after each atomic operation.
[[gnu::always_inline]] inline bool BlockPool::holds(BlockId block, BlockView b,
                                                    const Content& content) const {
  if (b.parent_uid() != content.parent.uid) return false;
  if (!b.has_plausible_uid()) return false;  // a ready block without a uid is corrupt
  const TokenRow row = memory_.tokens_of(block);
  if (!row.holds(content.tokens)) return false;
  return b.has_extra() ? row.extra_key() == content.extra : is_none(content.extra);
}

/// False if shared memory is corrupt: the word does not say that this process is filling the block,
/// the serial is out of range, or the block is of another domain. This process then goes on using
/// the block, but does not publish it or the blocks that follow it in the sequence.
[[gnu::always_inline]] inline bool BlockPool::is_publishable(BlockId block, BlockWord word,
                                                             const Prefix& end,
                                                             std::uint64_t serial) const {
  return word.is_filled_by(self_) && end.uid != 0 && serial < kImplausible &&
         domain_of(block) == end.domain;
}

[[gnu::always_inline]] inline void BlockPool::write_content(BlockId block,
                                                            const BlockIdentity& identity,
                                                            const Content& content) {
  view(block).write(identity, !is_none(content.extra), slot_);
  memory_.tokens_of(block).write(content.tokens, content.extra);
}

/// Publishes a block that this process is filling, as `word` says, and whose content is complete.
/// Then inserts its hint into the index. If the process is killed in between, no match finds the
/// block until `fsck --repair` inserts the hint, or the block is evicted.
[[gnu::always_inline]] inline void BlockPool::make_ready(BlockId block, BlockWord word,
                                                         Hash128 name) {
  view(block).set_word(word.published_by(self_));
  KV_KILL_POINT("publish.after_ready");
  lanes_.published(block);
  index_.insert(name, block);
  KV_KILL_POINT("publish.hinted");
}

}  // namespace kvhive
