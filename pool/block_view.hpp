#pragma once
// Access to one block in shared memory, for the pool, reaper, fsck, repair and reports. BlockView
// reads and writes the block's word and descriptor, TokenRow its tokens and extra key. Both consist
// of one or two pointers and are passed by value. They cache nothing: every call reads or writes
// shared memory.
//
// Memory order: a reader loads the word with acquire before it reads the descriptor and the tokens;
// a writer stores the word with release after it has written them. The accesses to descriptor
// fields and tokens are relaxed.
//
// Generations have 28 bits, so they come round: a process that takes one block again and again gets
// there in 15 seconds, and the word is then equal bit for bit to an old one. What tells two
// publications of a block apart for good is the serial: 64 bits, drawn anew for each publication.
// A reader loads the serial before the word, reads what it wants, and then finds a ready word of
// the same generation (or pins the block) and after that the same serial. Then everything that it
// read in between is of one publication.

#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "base/kill_point.hpp"
#include "pool/pool_layout.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

/// The identity of a published block, without its tokens.
struct BlockIdentity {
  Hash128 name;
  std::uint64_t uid = 0;
  std::uint64_t parent_uid = 0;
  std::uint64_t serial = 0;
  std::uint32_t depth = 0;  ///< blocks before it in its sequence
  GroupId group{};
};

class BlockView {
 public:
  explicit BlockView(BlockDescriptor& descriptor) : d_(&descriptor) {}

  // -- the word

  BlockWord word() const { return {d_->word.load(std::memory_order_acquire)}; }
  BlockState state() const { return word().state(); }

  /// Exchanges the word for `next` if it is still `seen`.
  [[nodiscard]] bool change(BlockWord seen, BlockWord next) const {
    return d_->word.compare_exchange_strong(seen.bits, next.bits, std::memory_order_acq_rel);
  }
  /// Stores the word. Only for the holder of a block that is being filled: no other process changes
  /// that block's word.
  void set_word(BlockWord next) const { d_->word.store(next.bits, std::memory_order_release); }

  /// Sets the holder's bit if the block is ready in the generation that was `seen` (which is
  /// ready), and sets `seen` to the word before the change. False if the block has been taken again
  /// since. The generation may have come round, so the caller compares the serial afterwards. (It
  /// does not return optional<BlockWord>: GCC builds one in memory from two narrow stores and reads
  /// it by a wide load, which stalls for longer than the exchange takes.)
  ///
  /// \param mark  BlockWord::kHit to set that bit, too, or 0
  [[nodiscard]] bool pin(BlockWord& seen, Holder holder, std::uint64_t mark = 0) const {
    std::uint64_t now = seen.bits;  // a plain integer: GCC keeps no struct in a register here
    while (!d_->word.compare_exchange_weak(now, BlockWord{now}.pinned_by(holder).bits | mark,
                                           std::memory_order_acq_rel, std::memory_order_acquire))
      if (!seen.is_same_generation({now})) return false;
    seen = {now};
    return true;
  }
  /// Clears the holder's bit. Returns the word before the change. Sequentially consistent, because
  /// the caller reads the head of the release order afterwards (IdleOrder::settle).
  BlockWord unpin(Holder holder) const {
    return {d_->word.fetch_and(~std::uint64_t{holder.bit}, std::memory_order_seq_cst)};
  }
  /// Retires the block if its state and generation are still as in `seen`, whatever its holders. If
  /// the generation has come round meanwhile, a sound block is lost to the pool, and nothing else:
  /// its holders go on reading its bytes.
  [[nodiscard]] bool retire(BlockWord seen) const {
    BlockWord now = seen;
    do {
      if (now.generation() != seen.generation() || now.state() != seen.state()) return false;
    } while (
        !d_->word.compare_exchange_weak(now.bits, now.retired().bits, std::memory_order_acq_rel));
    return true;
  }
  /// Marks a block that this process holds as hit.
  void mark_hit() const { d_->word.fetch_or(BlockWord::kHit, std::memory_order_relaxed); }
  void clear_bits(std::uint64_t bits) const {
    d_->word.fetch_and(~bits, std::memory_order_acq_rel);
  }

  // -- the descriptor

  Hash128 name() const { return {d_->hash_low.load(kRelaxed), d_->hash_high.load(kRelaxed)}; }
  std::uint64_t name_low() const { return d_->hash_low.load(kRelaxed); }
  std::uint64_t uid() const { return d_->uid.load(kRelaxed); }
  std::uint64_t parent_uid() const { return d_->parent_uid.load(kRelaxed); }
  /// With acquire, so that a serial read before the word really is read before it.
  std::uint64_t serial() const { return d_->serial.load(std::memory_order_acquire); }
  std::uint32_t depth() const { return d_->depth.load(kRelaxed); }
  std::uint64_t stamp() const { return d_->stamp.load(kRelaxed); }
  DomainId domain() const { return {d_->domain.load(kRelaxed)}; }
  GroupId group() const { return {d_->group.load(kRelaxed)}; }
  bool has_extra() const { return (d_->traits.load(kRelaxed) & 1) != 0; }
  /// The slot of the process that has published the content or, of a demoted block, moved it. Not
  /// a slot of the pool, if the byte is corrupt.
  ProcessSlot author() const { return {std::uint32_t{d_->traits.load(kRelaxed)} >> 1}; }

  /// A uid that content can have. 0 and kAnnounced mean that there is none; others are corrupt.
  bool has_plausible_uid() const { return uid() - 1 < kImplausible; }

  void set_name(Hash128 name) const {
    d_->hash_low.store(name.low, kRelaxed);
    d_->hash_high.store(name.high, kRelaxed);
  }
  void set_uid(std::uint64_t uid) const { d_->uid.store(uid, kRelaxed); }
  void set_stamp(std::uint64_t stamp) const { d_->stamp.store(stamp, kRelaxed); }
  /// The caller has zeroed the bytes of another domain before. If it is killed in between, the
  /// descriptor still names the old domain, and the next process zeroes the block again.
  void set_domain(DomainId domain) const {
    d_->domain.store(domain.value, std::memory_order_release);
  }
  /// Clears the uid. From then on no match finds content in the block, even if its word gets
  /// corrupted.
  void forget_uid() const { set_uid(0); }
  void forget_identity() const {
    set_uid(0);
    d_->parent_uid.store(0, kRelaxed);
    set_name({});
  }
  /// Writes the identity. Only the holder of a block that is being filled may call it; no match
  /// reads the descriptor before the word says ready.
  void write(const BlockIdentity& identity, bool has_extra, ProcessSlot author) const {
    KV_KILL_POINT("content.before_hash");
    d_->hash_low.store(identity.name.low, kRelaxed);
    KV_KILL_POINT("content.half_hashed");
    d_->hash_high.store(identity.name.high, kRelaxed);
    KV_KILL_POINT("content.before_uid");
    d_->uid.store(identity.uid, kRelaxed);
    d_->parent_uid.store(identity.parent_uid, kRelaxed);
    KV_KILL_POINT("content.before_serial");
    d_->serial.store(identity.serial, kRelaxed);
    d_->depth.store(identity.depth, kRelaxed);
    d_->group.store(identity.group.value, kRelaxed);
    d_->traits.store(static_cast<std::uint8_t>(author.value << 1 | std::uint32_t{has_extra}),
                     kRelaxed);
    KV_KILL_POINT("content.traits");
  }

  void prefetch() const { kvhive::prefetch(d_); }
  void prefetch_to_write() const { kvhive::prefetch_to_write(d_); }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  BlockDescriptor* d_;
};

/// The tokens of a full block and its extra key. Two tokens share a 64-bit word; if their number is
/// odd, the last word is padded with zero.
class TokenRow {
 public:
  TokenRow(std::atomic<std::uint64_t>* row, std::atomic<std::uint64_t>* extra)
      : row_(row), extra_(extra) {}

  /// Whether the row has exactly these tokens. Compares without a branch per word.
  bool holds(std::span<const TokenId> tokens) const {
    std::uint64_t difference = 0;
    for_each_word(tokens, [&](std::size_t w, std::uint64_t word) {
      difference |= row_[w].load(kRelaxed) ^ word;
    });
    return difference == 0;
  }
  std::vector<TokenId> read(std::size_t count) const {
    std::vector<TokenId> tokens(count);
    for (std::size_t i = 0; i < count; ++i)
      tokens[i] = static_cast<TokenId>(row_[i / 2].load(kRelaxed) >> (i % 2 == 0 ? 0 : 32));
    return tokens;
  }
  /// Valid only if the block's descriptor says that it has an extra key.
  ExtraKey extra_key() const { return {extra_[0].load(kRelaxed), extra_[1].load(kRelaxed)}; }

  /// Only the holder of a block that is being filled may call it.
  void write(std::span<const TokenId> tokens, const ExtraKey& extra) const {
    for_each_word(tokens, [&](std::size_t w, std::uint64_t word) {
      row_[w].store(word, kRelaxed);
      KV_KILL_POINT("content.after_a_token_word");
    });
    if (is_none(extra)) return;
    extra_[0].store(extra[0], kRelaxed);
    KV_KILL_POINT("content.half_an_extra_key");
    extra_[1].store(extra[1], kRelaxed);
    KV_KILL_POINT("content.extra_key");
  }

  void prefetch() const { kvhive::prefetch(row_); }
  void prefetch_to_write() const { kvhive::prefetch_to_write(row_); }

 private:
  /// Calls visit(w, word).
  template <class Visit>
  static void for_each_word(std::span<const TokenId> tokens, Visit&& visit) {
    static_assert(std::endian::native == std::endian::little && sizeof(TokenId) == 4);
    std::uint64_t word = 0;
    const std::size_t pairs = tokens.size() / 2;
    for (std::size_t w = 0; w < pairs; ++w) {
      std::memcpy(&word, &tokens[2 * w], sizeof word);
      visit(w, word);
    }
    if (tokens.size() % 2 != 0)
      visit(pairs, std::uint64_t{static_cast<std::uint32_t>(tokens.back())});
  }

  static constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<std::uint64_t>* row_;
  std::atomic<std::uint64_t>* extra_;
};

/// Runs `read`, which reads from the block. True = the block was the same publication before and
/// after, so everything that was read is of one content.
template <class Read>
[[nodiscard]] bool read_stably(BlockView block, Read&& read) {
  const std::uint64_t serial = block.serial();
  const BlockWord before = block.word();
  if (!before.is_ready()) return false;
  read();
  std::atomic_thread_fence(std::memory_order_acquire);
  return block.word().is_same_generation(before) && block.serial() == serial;
}

}  // namespace kvhive
