#pragma once
// One block in shared memory, as pool, reaper, fsck, repair and reports see it: BlockView is its
// word and descriptor, TokenRow its tokens and extra key. Both are a pointer or two, to be passed
// by value; nothing is cached, every call reads or writes shared memory.
//
// Order: the word is read with acquire before the descriptor and the tokens, and written with
// release after them. A reader that finds the same publication (BlockWord::is_same_publication)
// before and after has read one content; TokenRow and the descriptor's fields themselves are
// relaxed.

#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "pool/kill_point.hpp"
#include "pool/pool_layout.hpp"
#include "base/prefetch.hpp"

namespace kvhive {

/// What a published block is, apart from its tokens.
struct BlockIdentity {
  Hash128 name;
  std::uint64_t uid = 0;
  std::uint64_t parent_uid = 0;
  std::uint64_t serial = 0;
  std::uint32_t depth = 0;  ///< blocks before it in its sequence
};

class BlockView {
 public:
  explicit BlockView(BlockDescriptor& descriptor) : d_(&descriptor) {}

  // -- the word

  BlockWord word() const { return {d_->word.load(std::memory_order_acquire)}; }
  BlockState state() const { return word().state(); }

  /// Exchanges the word if it is still the one that was seen.
  [[nodiscard]] bool change(BlockWord seen, BlockWord next) const {
    return d_->word.compare_exchange_strong(seen.bits, next.bits, std::memory_order_acq_rel);
  }
  /// For the only holder of a block that is being filled: no other process changes its word.
  void set_word(BlockWord next) const { d_->word.store(next.bits, std::memory_order_release); }

  /// Pins the publication that was seen; `seen` is then the word before. False if the block has
  /// been taken anew since. (No optional<BlockWord>: GCC builds one in memory from two narrow
  /// stores and reads it by a wide load, which stalls for longer than the exchange takes.)
  [[nodiscard]] bool pin(BlockWord& seen, Holder holder) const {
    const BlockWord expected = seen;
    do {
      if (!seen.is_same_publication(expected)) return false;
    } while (!d_->word.compare_exchange_weak(seen.bits, seen.pinned_by(holder).bits,
                                             std::memory_order_acq_rel, std::memory_order_acquire));
    return true;
  }
  /// Clears the holder's bit. Returns the word before. Sequentially consistent: the release order's
  /// head is read afterwards (IdleOrder::settle).
  BlockWord unpin(Holder holder) const {
    return {d_->word.fetch_and(~std::uint64_t{holder.bit}, std::memory_order_seq_cst)};
  }
  /// Retires the block if state and generation are still those that were seen; holders do not
  /// matter.
  [[nodiscard]] bool retire(BlockWord seen) const {
    BlockWord now = seen;
    do {
      if (now.generation() != seen.generation() || now.state() != seen.state()) return false;
    } while (
        !d_->word.compare_exchange_weak(now.bits, now.retired().bits, std::memory_order_acq_rel));
    return true;
  }
  void clear_bits(std::uint64_t bits) const {
    d_->word.fetch_and(~bits, std::memory_order_acq_rel);
  }

  // -- the descriptor

  Hash128 name() const { return {d_->hash_low.load(kRelaxed), d_->hash_high.load(kRelaxed)}; }
  std::uint64_t name_low() const { return d_->hash_low.load(kRelaxed); }
  std::uint64_t uid() const { return d_->uid.load(kRelaxed); }
  std::uint64_t parent_uid() const { return d_->parent_uid.load(kRelaxed); }
  std::uint64_t serial() const { return d_->serial.load(kRelaxed); }
  std::uint32_t depth() const { return d_->depth.load(kRelaxed); }
  std::uint64_t stamp() const { return d_->stamp.load(kRelaxed); }
  DomainId domain() const { return {d_->domain.load(kRelaxed)}; }
  std::uint8_t group() const { return d_->group.load(kRelaxed); }
  std::uint8_t has_extra() const { return d_->has_extra.load(kRelaxed); }

  /// A uid that content can have. 0 and kAnnounced mean that there is none; others are corrupt.
  bool has_plausible_uid() const { return uid() - 1 < kImplausible; }

  void set_name(Hash128 name) const {
    d_->hash_low.store(name.low, kRelaxed);
    d_->hash_high.store(name.high, kRelaxed);
  }
  void set_uid(std::uint64_t uid) const { d_->uid.store(uid, kRelaxed); }
  void set_stamp(std::uint64_t stamp) const { d_->stamp.store(stamp, kRelaxed); }
  /// After the bytes of another domain are zeroed, so that a kill in between leaves them marked.
  void set_domain(DomainId domain) const {
    d_->domain.store(domain.value, std::memory_order_release);
  }
  /// Whatever happens to the word then, no content is found in the block.
  void forget_uid() const { set_uid(0); }
  void forget_identity() const {
    set_uid(0);
    d_->parent_uid.store(0, kRelaxed);
    set_name({});
  }
  /// By the holder of a block that is being filled; no other process looks before the word says
  /// ready.
  void write(const BlockIdentity& identity, bool has_extra) const {
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
    d_->has_extra.store(has_extra, kRelaxed);
    KV_KILL_POINT("content.has_extra");
  }

  void prefetch() const { kvhive::prefetch(d_); }
  void prefetch_to_write() const { kvhive::prefetch_to_write(d_); }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  BlockDescriptor* d_;
};

/// Tokens of a full block, two in a 64-bit word (the last word of an odd number is padded with
/// zero), and the block's extra key.
class TokenRow {
 public:
  TokenRow(std::atomic<std::uint64_t>* row, std::atomic<std::uint64_t>* extra)
      : row_(row), extra_(extra) {}

  /// Without a branch per word.
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
  /// Meaningful only if the descriptor says that there is one.
  ExtraKey extra_key() const { return {extra_[0].load(kRelaxed), extra_[1].load(kRelaxed)}; }

  /// By the holder of a block that is being filled.
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

/// Runs `read` and returns whether the block stayed the same publication meanwhile, so that what
/// was read belongs together.
template <class Read>
[[nodiscard]] bool read_stably(BlockView block, Read&& read) {
  const BlockWord before = block.word();
  if (!before.is_ready()) return false;
  read();
  std::atomic_thread_fence(std::memory_order_acquire);
  return block.word().is_same_publication(before);
}

}  // namespace kvhive
