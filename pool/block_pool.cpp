#include "pool/block_pool.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <unordered_set>

#include "base/check.hpp"
#include "pool/kill_point.hpp"
#include "pool/prefetch.hpp"
#include "pool/scrub.hpp"
#include "pool/tier_counters.hpp"

namespace kvhive {
namespace {

/// Words of a token row: two tokens each; the last one of an odd number is padded with zero.
/// Calls visit(w, word).
template <class Visit>
void for_each_row_word(std::span<const TokenId> tokens, Visit&& visit) {
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

}  // namespace

/// One block's content, as far as identity goes: the past, the tokens, and what else was fed in.
struct BlockPool::Content {
  Content(Prefix from, std::size_t i, std::size_t block_tokens, std::span<const TokenId> all_tokens,
          std::span<const ExtraKey> extras)
      : parent(from),
        tokens(all_tokens.subspan(i * block_tokens, block_tokens)),
        extra(extras.empty() ? kNoExtraKey : extras[i]) {}

  Prefix parent;
  std::span<const TokenId> tokens;
  ExtraKey extra;
};

BlockPool::BlockPool(const PoolMemory& memory, ProcessSlot slot, Scrub scrub, EraseOnDevice erase)
    : memory_(memory),
      slot_(slot),
      scrub_(scrub),
      erase_(std::move(erase)),
      my_bit_(holder_bit(slot)),
      index_(memory.index(), memory.layout().index_buckets),
      journal_(memory),
      counters_(&memory.control().processes[slot.value].counters),
      references_(memory.geometry().total_blocks(), 0) {
  KV_CHECK(slot.value < kMaxProcesses, slot.value);
  KV_CHECK(memory.is_mapped(Tier::device) || erase_ || scrub == Scrub::never);
  for (const Tier t : {Tier::device, Tier::host})
    tiers_.push_back({FreeBlocks(memory, t), IdleOrder(memory, t)});
}

Prefix BlockPool::root(DomainId domain) { return {domain, kRootUid | domain.value, 0}; }

/// So many blocks ahead cache misses are started: enough to hide one, few enough to be under way
/// at once.
constexpr std::size_t kAhead = 16;
/// Candidates that are left to another process at first.
constexpr std::size_t kLeap = 128;

// -- match ----------------------------------------------------------------------------------------

PrefixHit BlockPool::match(Tier tier, const Prefix& from, std::span<const Hash128> chain,
                           std::span<const TokenId> tokens, std::span<const ExtraKey> extras) {
  const std::size_t block_tokens = tokens_per_block();
  KV_CHECK(tokens.size() == chain.size() * block_tokens, tokens.size(), chain.size());
  // Buckets are at random places and everything else waits for them: a whole prompt's are under way
  // at once. What they name lies side by side, mostly, and needs a shorter notice.
  constexpr std::size_t kBucketsAhead = 64;
  std::array<PrefixIndex::Glance, kAhead / 2> glances;
  const std::size_t payload_bytes =
      memory_.is_mapped(tier) ? memory_.geometry().kv.block_bytes() : 0;
  const std::uint32_t first_block = memory_.tier_layout(tier).first_block;
  const auto look_ahead = [&](std::size_t i) {
    if (i >= chain.size()) return;
    const auto& glance = glances[i % glances.size()] = index_.glance(chain[i]);
    if (!memory_.has_block(glance.block)) return;
    prefetch_to_write(&descriptor(glance.block));
    prefetch(memory_.token_row(glance.block));
    prefetch(&references_[glance.block.value]);
    // Who finds a block reads it next: its page walk and first miss are as slow as all of ours.
    if (payload_bytes != 0 && glance.block.value >= first_block)
      prefetch(memory_.arena(tier) + (glance.block.value - first_block) * payload_bytes);
  };
  for (std::size_t i = 0; i < std::min(chain.size(), kBucketsAhead); ++i) index_.prefetch(chain[i]);
  for (std::size_t i = 0; i < glances.size(); ++i) look_ahead(i);

  std::vector<BlockId> found;
  Prefix end = from;  // in registers: memory written in halves cannot be read as a whole at once
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const Content content(end, i, block_tokens, tokens, extras);
    auto [guess, is_only] = glances[i % glances.size()];
    if (i + kBucketsAhead < chain.size()) index_.prefetch(chain[i + kBucketsAhead]);
    look_ahead(i + glances.size());
    if (!(is_only && pin_if(guess, tier, chain[i], content)))
      guess = find_and_pin(tier, chain[i], content);
    if (guess == kNullBlock) break;
    if (found.empty()) found.reserve(chain.size());
    found.push_back(guess);
    end.uid = descriptor(guess).uid.load(std::memory_order_relaxed);
    ++end.depth;
  }
  return {std::move(found), end};
}

/// Whether a block's content is this one. Only meaningful if the block is ready with the same
/// generation before and after: a block that is evicted meanwhile gives any answer.
bool BlockPool::holds(BlockId block, const Content& content) const {
  const BlockDescriptor& d = descriptor(block);
  if (d.parent_uid.load(std::memory_order_relaxed) != content.parent.uid) return false;
  // Never published under a name: whoever says so of it is damaged.
  if (d.uid.load(std::memory_order_relaxed) - 1 >= kImplausible) return false;
  const auto* row = memory_.token_row(block);
  std::uint64_t difference = 0;
  for_each_row_word(content.tokens, [&](std::size_t w, std::uint64_t word) {
    difference |= row[w].load(std::memory_order_relaxed) ^ word;
  });
  if (difference != 0) return false;
  if (d.has_extra.load(std::memory_order_relaxed) == 0) return is_none(content.extra);
  const auto* extra = memory_.extra_key(block);
  return extra[0].load(std::memory_order_relaxed) == content.extra[0] &&
         extra[1].load(std::memory_order_relaxed) == content.extra[1];
}

/// Holds a block if it has this content. Only for the only block of its name: of several the first
/// published is to be found.
bool BlockPool::pin_if(BlockId block, Tier tier, Hash128 hash, const Content& content) {
  if (!memory_.has_block(block) || memory_.tier_of(block) != tier) return false;
  const BlockWord word = load_word(block);
  return word.state() == BlockState::ready && name_of(block) == hash && holds(block, content) &&
         pin(block, word);
}

/// The block with this content that was published first (vLLM finds the first inserted), held; null
/// block on a miss.
BlockId BlockPool::find_and_pin(Tier tier, Hash128 hash, const Content& content) {
  BlockId best = kNullBlock;
  BlockWord best_word;
  std::uint64_t best_serial = ~0ull;
  index_.for_each(hash, [&](BlockId block) {
    if (!memory_.has_block(block)) return PrefixIndex::Verdict::drop;
    const BlockWord word = load_word(block);
    const BlockDescriptor& d = descriptor(block);
    if (word.state() != BlockState::ready || d.hash_low.load(std::memory_order_relaxed) != hash.low)
      return PrefixIndex::Verdict::drop;
    if (memory_.tier_of(block) != tier || !holds(block, content)) return PrefixIndex::Verdict::keep;
    const std::uint64_t serial = d.serial.load(std::memory_order_relaxed);
    if (serial < best_serial) best = block, best_word = word, best_serial = serial;
    return PrefixIndex::Verdict::keep;
  });
  if (best != kNullBlock && pin(best, best_word)) return best;
  return kNullBlock;
}

/// Holds a block that was seen ready. Fails if it has been given out anew since: what was read then
/// proves nothing.
bool BlockPool::pin(BlockId block, BlockWord seen) {
  std::uint32_t& references = references_[block.value];
  if (references != 0 && (seen.holders() & my_bit_) != 0) [[likely]] {
    ++references;
    return true;
  }
  auto& word = descriptor(block).word;
  BlockWord expected = seen;
  KV_KILL_POINT("pin.before_cas");
  do {
    if (expected.state() != BlockState::ready || expected.generation() != seen.generation())
      return false;
  } while (!word.compare_exchange_weak(expected.bits, expected.bits | my_bit_,
                                       std::memory_order_acq_rel, std::memory_order_acquire));
  KV_KILL_POINT("pin.after_cas");
  if (expected.holders() == 0) count_used(memory_.tier_of(block), +1);
  KV_KILL_POINT("pin.counted");
  ++references;  // from 0, unless damage had taken our bit
  return true;
}

/// Whether we are filling the block, by its word: what we know says so in any case.
bool BlockPool::is_ours(BlockId block) const {
  const BlockWord word = load_word(block);
  return word.state() == BlockState::filling && word.holders() == my_bit_;
}

/// A block that looks as if nobody held it, though we do: damage has taken our bit. Sees to it that
/// nobody writes what we read. False if we do not hold it.
bool BlockPool::keep_ours(BlockId block, BlockWord seen) {
  if (references_[block.value] == 0) [[likely]]
    return false;
  const BlockWord kept = seen.state() == BlockState::ready
                             ? BlockWord{seen.bits | my_bit_}
                             : BlockWord::make(BlockState::retired, seen.generation() + 1, 0);
  descriptor(block).word.compare_exchange_strong(seen.bits, kept.bits, std::memory_order_acq_rel);
  return true;
}

void BlockPool::cancel(const PrefixHit& hit) {
  scratch_.clear();
  for (const BlockId block : hit.blocks) {
    KV_CHECK(references_[block.value] > 0, block.value);
    if (--references_[block.value] != 0) continue;
    unpin(block);
    scratch_.push_back(block);
  }
  KV_KILL_POINT("cancel.before_restore");
  for (TierState& t : tiers_) t.idle.restore(scratch_);
  KV_KILL_POINT("cancel.restored");
}

// -- allocate -------------------------------------------------------------------------------------

Expected<std::vector<BlockId>> BlockPool::allocate(Tier tier, std::size_t count, DomainId domain,
                                                   std::vector<Evicted>* evicted) {
  std::vector<BlockId> taken;
  taken.reserve(count);
  const std::size_t evicted_before = evicted != nullptr ? evicted->size() : 0;
  if (take(tier, count, taken, evicted)) {
    std::span<Evicted> kept;  // in the same order as their blocks
    if (evicted != nullptr) kept = std::span(*evicted).subspan(evicted_before);
    scratch_.clear();
    for (const BlockId block : taken) {
      const bool is_kept = !kept.empty() && kept.front().block == block;
      if (is_kept) kept.front().heir = domain, kept = kept.subspan(1);
      if (is_kept && scrub_ == Scrub::on_domain_change) continue;
      if (domain_of(block) != domain && is_out_of_reach(block))
        scratch_.push_back(block);
      else
        hand_over(block, domain);
    }
    if (!scratch_.empty()) erase_(scratch_);
    for (const BlockId block : scratch_) hand_over(block, domain);
    KV_KILL_POINT("allocate.before_statistics");
    bump((*counters_)["allocated_blocks"], count);
    KV_KILL_POINT("allocate.done");
    return taken;
  }
  give_back_taken(taken);
  if (evicted != nullptr) evicted->resize(evicted_before);
  return failure(Errc::pool_exhausted, "need " + std::to_string(count) + " " +
                                           std::string(to_string(tier)) + " blocks, " +
                                           std::to_string(available(tier)) + " of " +
                                           std::to_string(capacity(tier)) + " are free or idle");
}

/// Completes `taken` to `count` blocks of ours. If there are not so many, those there were are left
/// in it.
bool BlockPool::take(Tier t, std::size_t count, std::vector<BlockId>& taken,
                     std::vector<Evicted>* evicted) {
  const auto try_once = [&] {
    return take_free(t, count, taken) || take_idle(t, count, taken, evicted);
  };
  const auto may_be_more = [&] { return available(t) >= count - taken.size(); };
  return try_once() || (may_be_more() && tier(t).free.find_lost() && try_once());
}

void BlockPool::give_back_taken(std::span<const BlockId> taken) {
  for (auto block = taken.rbegin(); block != taken.rend(); ++block) {
    references_[block->value] = 0;
    if (is_ours(*block)) give_back(*block);
  }
}

bool BlockPool::take_free(Tier t, std::size_t count, std::vector<BlockId>& taken) {
  FreeBlocks& free = tier(t).free;
  while (taken.size() < count) {
    auto candidate = free.next();
    if (!candidate) return false;
    auto [block, seen] = *candidate;
    if (keep_ours(block, seen)) continue;
    const BlockWord mine = BlockWord::make(BlockState::filling, seen.generation() + 1, my_bit_);
    KV_KILL_POINT("allocate.before_cas");
    if (!descriptor(block).word.compare_exchange_strong(seen.bits, mine.bits,
                                                        std::memory_order_acq_rel))
      continue;
    KV_KILL_POINT("allocate.after_cas");
    free.taken(block);
    take_over(block, t);
    taken.push_back(block);
  }
  return true;
}

/// Completes `taken` to `count` blocks by evicting. Nothing is evicted unless there were enough to
/// be had.
bool BlockPool::take_idle(Tier t, std::size_t count, std::vector<BlockId>& taken,
                          std::vector<Evicted>* evicted) {
  IdleOrder& idle = tier(t).idle;
  while (taken.size() < count) {
    const std::size_t missing = count - taken.size();
    candidates_.clear();
    idle.oldest(missing, candidates_);
    if (candidates_.size() < missing && available(t) >= missing) {
      idle.rollback();
      idle.scan();
      candidates_.clear();
      idle.oldest(missing, candidates_);
    }
    if (candidates_.size() < missing) {
      idle.rollback();
      return false;
    }
    const auto look_ahead = [&](std::size_t i) {
      if (i >= candidates_.size()) return;
      const BlockId block = candidates_[i].block;
      prefetch(&references_[block.value]);
      index_.prefetch_to_write(name_of(block));
    };
    for (std::size_t i = 0; i < kAhead; ++i) look_ahead(i);
    const std::size_t before = taken.size();
    const auto try_one = [&](std::size_t i) {
      look_ahead(i + kAhead);
      const bool is_taken = evict(candidates_[i].block, candidates_[i].word, evicted);
      if (is_taken) taken.push_back(candidates_[i].block);
      return is_taken;
    };
    // Who meets another process at the same candidates goes on some way behind it, and comes back
    // later: side by side, both would wait for every line to come over from the other.
    left_out_.clear();
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (try_one(i)) continue;
      left_out_.push_back(i + 1);
      i += kLeap;
    }
    for (const std::size_t first : left_out_)
      for (std::size_t i = first; i < std::min(first + kLeap, candidates_.size()); ++i)
        if (load_word(candidates_[i].block) == candidates_[i].word) try_one(i);
    KV_KILL_POINT("evict.before_journal");
    journal_.note(Departure::evicted, slot_, std::span(taken).subspan(before));
    KV_KILL_POINT("evict.before_commit");
    idle.commit();
    KV_KILL_POINT("evict.committed");
  }
  return true;
}

/// Takes an idle block for ourselves. One instruction decides; the stale hint is removed afterwards
/// (or dropped by whoever meets it, should we be killed in between).
bool BlockPool::evict(BlockId block, BlockWord seen, std::vector<Evicted>* evicted) {
  if (keep_ours(block, seen)) return false;
  const BlockWord mine = BlockWord::make(BlockState::filling, seen.generation() + 1, my_bit_);
  KV_KILL_POINT("evict.before_cas");
  if (!descriptor(block).word.compare_exchange_strong(seen.bits, mine.bits,
                                                      std::memory_order_acq_rel))
    return false;
  KV_KILL_POINT("evict.after_cas");
  index_.erase(name_of(block), block);
  if (evicted != nullptr)
    evicted->push_back({block,
                        name_of(block),
                        descriptor(block).uid.load(std::memory_order_relaxed),
                        domain_of(block),
                        {}});
  take_over(block, memory_.tier_of(block));
  bump((*counters_)["evicted_blocks"], 1u);
  KV_KILL_POINT("evict.done");
  return true;
}

/// A block whose word is ours now. It loses its name at once: should its word be damaged into
/// "ready" before there is new content, nothing is found in it.
void BlockPool::take_over(BlockId block, Tier t) {
  KV_KILL_POINT("take_over.before_nameless");
  descriptor(block).uid.store(0, std::memory_order_relaxed);
  references_[block.value] = 1;
  KV_KILL_POINT("take_over.before_count");
  count_used(t, +1);
  KV_KILL_POINT("take_over.counted");
}

/// Whether only the device can zero it.
bool BlockPool::is_out_of_reach(BlockId block) const {
  return scrub_ == Scrub::on_domain_change && !memory_.is_mapped(memory_.tier_of(block));
}

void BlockPool::hand_over(BlockId block, DomainId domain) const {
  if (domain_of(block) == domain) [[likely]]
    return;
  if (scrub_ == Scrub::on_domain_change)
    kvhive::hand_over(memory_, block, domain);
  else
    descriptor(block).domain.store(domain.value, std::memory_order_release);
}

// -- publish --------------------------------------------------------------------------------------

/// The name only: nothing is found by it before the word says ready.
void BlockPool::announce(std::span<const BlockId> blocks, std::span<const Hash128> names) {
  KV_CHECK(blocks.size() == names.size(), blocks.size(), names.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!is_ours(blocks[i])) continue;
    descriptor(blocks[i]).hash_low.store(names[i].low, std::memory_order_relaxed);
    descriptor(blocks[i]).hash_high.store(names[i].high, std::memory_order_relaxed);
    descriptor(blocks[i]).uid.store(kAnnounced, std::memory_order_relaxed);
  }
}

Prefix BlockPool::publish(const Prefix& from, std::span<const BlockId> blocks,
                          std::span<const Hash128> chain, std::span<const TokenId> tokens,
                          std::span<const ExtraKey> extras) {
  const std::size_t block_tokens = tokens_per_block();
  KV_CHECK(blocks.size() == chain.size() && tokens.size() == chain.size() * block_tokens,
           blocks.size(), chain.size(), tokens.size());
  const auto look_ahead = [&](std::size_t i) {
    if (i >= chain.size()) return;
    index_.prefetch_to_write(chain[i]);
    prefetch_to_write(&descriptor(blocks[i]));
    prefetch_to_write(memory_.token_row(blocks[i]));
  };
  for (std::size_t i = 0; i < kAhead; ++i) look_ahead(i);

  Prefix end = from;
  KV_KILL_POINT("publish.before_serials");
  std::uint64_t serial = draw_serials(std::max<std::size_t>(blocks.size(), 1));
  for (std::size_t i = 0; i < blocks.size(); ++i, ++serial) {
    look_ahead(i + kAhead);
    KV_KILL_POINT("publish.serials_drawn");
    const BlockId block = blocks[i];
    const BlockWord word = load_word(block);
    const bool is_published = word.state() == BlockState::ready && (word.holders() & my_bit_) != 0;
    KV_CHECK(references_[block.value] > 0 && !is_published, block.value, word.bits);

    const Content content(end, i, block_tokens, tokens, extras);
    const std::uint64_t known = find_uid(chain[i], content);
    // Named by another process since we drew: what comes later bears later names, always.
    if (known > serial) [[unlikely]]
      serial = draw_serials(blocks.size() - i);
    // A word that does not say it is ours, a serial nobody lives to see, or a domain it was not
    // taken for is damage: the block stays what it is to us, but nobody else gets to see it, nor
    // what comes after it.
    const bool is_sound =
        is_ours(block) && end.uid != 0 && serial < kImplausible &&
        descriptor(block).domain.load(std::memory_order_relaxed) == from.domain.value;
    const std::uint64_t uid = known != 0 || !is_sound ? known : serial;
    if (is_sound) {
      write_content(block, chain[i], content, uid, serial);
      KV_KILL_POINT("publish.before_ready");
      make_ready(block, chain[i]);
    }
    end.uid = uid;
    ++end.depth;
  }
  bump((*counters_)["published_blocks"], blocks.size());
  KV_KILL_POINT("publish.counted");
  return end;
}

/// A block of ours with its content in place is there for all.
void BlockPool::make_ready(BlockId block, Hash128 name) {
  descriptor(block).word.store(
      BlockWord::make(BlockState::ready, load_word(block).generation(), my_bit_).bits,
      std::memory_order_release);
  KV_KILL_POINT("publish.after_ready");
  index_.insert(name, block);
  KV_KILL_POINT("publish.hinted");
}

/// `count` serials nobody had before. The counter only rises: if it is behind what we have seen of
/// it, it has lost a bit, and follows us.
std::uint64_t BlockPool::draw_serials(std::size_t count) {
  auto& next = memory_.control().next_serial;
  std::uint64_t first = next.fetch_add(count, std::memory_order_relaxed);
  if (first < last_serial_) [[unlikely]] {
    std::uint64_t now = next.load(std::memory_order_relaxed);
    while (now < last_serial_ &&
           !next.compare_exchange_weak(now, last_serial_, std::memory_order_relaxed)) {
    }
    first = next.fetch_add(count, std::memory_order_relaxed);
  }
  if (first < kImplausible) last_serial_ = first + count;
  return first;
}

/// The uid under which this content was published before, in either tier; 0 if it was not. Should
/// two processes have named it at the same moment, the first: that is the one a match goes on from.
std::uint64_t BlockPool::find_uid(Hash128 hash, const Content& content) {
  std::uint64_t uid = 0;
  std::uint64_t best_serial = ~0ull;
  index_.for_each(hash, [&](BlockId block) {
    if (!memory_.has_block(block)) return PrefixIndex::Verdict::drop;
    const BlockWord before = load_word(block);
    if (before.state() != BlockState::ready || !holds(block, content))
      return PrefixIndex::Verdict::keep;
    const std::uint64_t found = descriptor(block).uid.load(std::memory_order_relaxed);
    const std::uint64_t serial = descriptor(block).serial.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const BlockWord after = load_word(block);
    if (after.state() == BlockState::ready && after.generation() == before.generation() &&
        serial < best_serial)
      uid = found, best_serial = serial;
    return PrefixIndex::Verdict::keep;
  });
  return uid;
}

void BlockPool::write_content(BlockId block, Hash128 hash, const Content& content,
                              std::uint64_t uid, std::uint64_t serial) {
  constexpr auto relaxed = std::memory_order_relaxed;  // nobody may look before the word says ready
  BlockDescriptor& d = descriptor(block);
  KV_KILL_POINT("content.before_hash");
  d.hash_low.store(hash.low, relaxed);
  KV_KILL_POINT("content.half_hashed");
  d.hash_high.store(hash.high, relaxed);
  KV_KILL_POINT("content.before_uid");
  d.uid.store(uid, relaxed);
  d.parent_uid.store(content.parent.uid, relaxed);
  KV_KILL_POINT("content.before_serial");
  d.serial.store(serial, relaxed);
  d.depth.store(content.parent.depth, relaxed);
  d.has_extra.store(!is_none(content.extra), relaxed);
  KV_KILL_POINT("content.has_extra");
  auto* row = memory_.token_row(block);
  for_each_row_word(content.tokens, [&](std::size_t w, std::uint64_t word) {
    row[w].store(word, relaxed);
    KV_KILL_POINT("content.after_a_token_word");
  });
  if (is_none(content.extra)) return;
  auto* extra = memory_.extra_key(block);
  extra[0].store(content.extra[0], relaxed);
  KV_KILL_POINT("content.half_an_extra_key");
  extra[1].store(content.extra[1], relaxed);
  KV_KILL_POINT("content.extra_key");
}

// -- demote ---------------------------------------------------------------------------------------

/// Calls use(content) with what the block's descriptor and token row still say of it.
template <class Use>
void BlockPool::with_content(const Evicted& evicted, Use&& use) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const BlockDescriptor& d = descriptor(evicted.block);
  std::vector<TokenId> tokens(tokens_per_block());
  const auto* row = memory_.token_row(evicted.block);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>(row[i / 2].load(relaxed) >> (i % 2 == 0 ? 0 : 32));
  const auto* key = memory_.extra_key(evicted.block);
  const ExtraKey extra = d.has_extra.load(relaxed) != 0
                             ? ExtraKey{key[0].load(relaxed), key[1].load(relaxed)}
                             : kNoExtraKey;
  const Prefix parent{evicted.domain, d.parent_uid.load(relaxed), d.depth.load(relaxed)};
  use(Content(parent, 0, tokens.size(), tokens, {&extra, 1}));
}

/// What of `evicted` is nowhere else, or in the host tier already, where it is held from now on.
std::vector<Demotion> BlockPool::worth_keeping(std::span<const Evicted> evicted) {
  std::vector<Demotion> demotions;
  std::unordered_set<std::uint64_t> uids;  // two processes may have computed the same
  for (const Evicted& gone : evicted) {
    if (gone.uid - 1 >= kImplausible) continue;  // damaged
    with_content(gone, [&](const Content& content) {
      const BlockId there = find_and_pin(Tier::host, gone.name, content);
      if (there != kNullBlock)
        demotions.push_back({gone, there, true});
      else if (uids.insert(gone.uid).second && find_uid(gone.name, content) == 0)
        demotions.push_back({gone, kNullBlock, false});
    });
  }
  return demotions;
}

std::vector<Demotion> BlockPool::demote(std::span<const Evicted> evicted) {
  std::vector<Demotion> demotions = worth_keeping(evicted);
  std::size_t missing = 0;
  for (const Demotion& demotion : demotions) missing += !demotion.is_there;
  std::vector<BlockId> taken;
  take(Tier::host, std::min(missing, available(Tier::host)), taken, nullptr);  // or fewer
  std::erase_if(demotions,
                [&](const Demotion& d) { return !d.is_there && missing-- > taken.size(); });
  KV_KILL_POINT("demote.blocks_taken");
  auto next = taken.begin();
  for (auto& [gone, destination, is_there] : demotions) {
    if (is_there) continue;
    destination = *next++;
    hand_over(destination, gone.domain);
    KV_KILL_POINT("demote.before_content");
    // The uid comes with the bytes: until then nothing is found here, whatever happens to the word.
    with_content(gone, [this, &from = gone, to = destination](const Content& content) {
      const auto serial = descriptor(from.block).serial.load(std::memory_order_relaxed);
      write_content(to, from.name, content, 0, serial);
    });
    KV_KILL_POINT("demote.after_content");
  }
  return demotions;
}

void BlockPool::finish_demotion(std::span<const Demotion> demotions) {
  std::vector<BlockId> copied, all;
  for (const auto& [content, block, is_there] : demotions) {
    all.push_back(block);
    if (is_there || !is_ours(block)) continue;
    KV_KILL_POINT("demotion.before_uid");
    descriptor(block).uid.store(content.uid, std::memory_order_relaxed);
    KV_KILL_POINT("demotion.before_ready");
    make_ready(block, content.name);
    copied.push_back(block);
  }
  journal_.note(Departure::demoted, slot_, copied);
  KV_KILL_POINT("demotion.before_count");
  bump((*counters_)["demoted_blocks"], copied.size());
  KV_KILL_POINT("demotion.before_release");
  // What was evicted first is to be evicted first again.
  std::reverse(all.begin(), all.end());
  release(all);
}

// -- release --------------------------------------------------------------------------------------

void BlockPool::release(std::span<const BlockId> blocks) {
  drop_references(blocks);
  // Unpublished blocks go to the head of the free queue, the end of the sequence on top.
  for (const BlockId block : blocks) {
    if (references_[block.value] == 0 && is_ours(block)) give_back(block);
  }
}

/// Published blocks nobody here refers to any more become idle, the end of the sequence first (so
/// it is evicted first).
void BlockPool::drop_references(std::span<const BlockId> blocks) {
  for (const Tier t : {Tier::device, Tier::host}) {
    scratch_.clear();
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (blocks.rend() - block > std::ptrdiff_t{kAhead})
        prefetch_to_write(&descriptor(block[kAhead]));
      if (memory_.tier_of(*block) != t) continue;
      std::uint32_t& references = references_[block->value];
      KV_CHECK(references > 0, block->value);
      if (--references == 0 && load_word(*block).state() == BlockState::ready)
        scratch_.push_back(*block);
    }
    if (scratch_.empty()) continue;
    IdleOrder& idle = tier(t).idle;
    KV_KILL_POINT("release.before_stamp");
    idle.stamp(scratch_);
    KV_KILL_POINT("release.stamped");
    for (const BlockId block : scratch_) unpin(block);
    KV_KILL_POINT("release.before_settle");
    idle.settle(scratch_);
    KV_KILL_POINT("release.settled");
  }
}

void BlockPool::unpin(BlockId block) {
  KV_KILL_POINT("unpin.before_clear");
  const BlockWord before{
      descriptor(block).word.fetch_and(~std::uint64_t{my_bit_}, std::memory_order_seq_cst)};
  KV_KILL_POINT("unpin.cleared");
  if (before.holders() == my_bit_) count_used(memory_.tier_of(block), -1);
  KV_KILL_POINT("unpin.counted");
}

/// A block of ours that was never published is free again.
void BlockPool::give_back(BlockId block) {
  const BlockWord word = load_word(block);
  KV_KILL_POINT("give_back.before_free");
  descriptor(block).word.store(BlockWord::make(BlockState::free, word.generation(), 0).bits,
                               std::memory_order_release);
  KV_KILL_POINT("give_back.freed");
  const Tier t = memory_.tier_of(block);
  count_used(t, -1);
  KV_KILL_POINT("give_back.counted");
  tier(t).free.given_back(block, word.generation());
}

// -- fork and copy on write -----------------------------------------------------------------------

void BlockPool::fork(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    KV_CHECK(references_[block.value] > 0, block.value);
    ++references_[block.value];
  }
}

Expected<CopyOnWrite> BlockPool::make_writable(BlockId block) {
  KV_CHECK(references_[block.value] > 0, block.value);
  if (references_[block.value] == 1 && is_ours(block)) return CopyOnWrite{block, block};
  const DomainId domain{descriptor(block).domain.load(std::memory_order_relaxed)};
  auto fresh = allocate(memory_.tier_of(block), 1, domain);
  if (!fresh) return forward_error(fresh);
  return CopyOnWrite{block, fresh->front()};
}

// -- figures --------------------------------------------------------------------------------------

void BlockPool::count_used(Tier t, std::int64_t change) const {
  add_used(counters_->used[std::size_t(t)], change);
}

std::size_t BlockPool::capacity(Tier t) const {
  const std::size_t blocks = memory_.tier_layout(t).blocks - (t == Tier::device ? 1 : 0);
  const std::size_t retired =
      memory_.control().tiers[std::size_t(t)].retired.load(std::memory_order_relaxed);
  return blocks - std::min(retired, blocks);
}

std::size_t BlockPool::available(Tier t) const {
  const ControlBlock& control = memory_.control();
  const auto correction = static_cast<std::uint64_t>(
      control.tiers[std::size_t(t)].used_correction.load(std::memory_order_relaxed));
  const auto used =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(counted_used(control, t)) + correction);
  const auto total = static_cast<std::int64_t>(capacity(t));
  return static_cast<std::size_t>(total - std::clamp<std::int64_t>(used, 0, total));
}

std::vector<BlockId> BlockPool::free_queue(Tier t) const {
  std::vector<BlockId> queue = tiers_[std::size_t(t)].free.order();
  const auto idle = tiers_[std::size_t(t)].idle.order();
  queue.insert(queue.end(), idle.begin(), idle.end());
  return queue;
}

}  // namespace kvhive
