// Publishes filled blocks, so that all processes can find them.

#include <algorithm>

#include "base/check.hpp"
#include "base/kill_point.hpp"
#include "base/prefetch.hpp"
#include "pool/block_pool_content.hpp"

namespace kvhive {

void BlockPool::announce(std::span<const BlockId> blocks, std::span<const Hash128> names) {
  KV_CHECK(blocks.size() == names.size(), blocks.size(), names.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!is_filling(blocks[i])) continue;
    view(blocks[i]).set_name(names[i]);
    view(blocks[i]).set_uid(kAnnounced);
  }
}

Prefix BlockPool::publish(const Prefix& from, std::span<const BlockId> blocks,
                          std::span<const Hash128> chain, std::span<const TokenId> tokens,
                          std::span<const ExtraKey> extras) {
  KV_CHECK(blocks.size() == chain.size() && tokens.size() == chain.size() * tokens_per_block(),
           blocks.size(), chain.size(), tokens.size());
  constexpr std::size_t kAhead = 16;
  const auto prefetch_ahead = [&](std::size_t i) {
    if (i >= chain.size()) return;
    index_.prefetch_to_write(chain[i]);
    view(blocks[i]).prefetch_to_write();
    memory_.tokens_of(blocks[i]).prefetch_to_write();
    if (i + kAhead < chain.size()) prefetch(&chain[i + kAhead]);  // which is read here next
  };
  for (std::size_t i = 0; i < kAhead; ++i) prefetch_ahead(i);

  const Contents contents{tokens, extras, tokens_per_block()};
  Prefix end = from;
  KV_KILL_POINT("publish.before_serials");
  std::uint64_t serial = draw_serials(std::max<std::size_t>(blocks.size(), 1));
  for (std::size_t i = 0; i < blocks.size(); ++i, ++serial) {
    prefetch_ahead(i + kAhead);
    KV_KILL_POINT("publish.serials_drawn");
    const BlockId block = blocks[i];
    const BlockWord word = view(block).word();
    const bool is_ours_and_ready = word.is_ready() && word.is_held_by(self_);
    KV_CHECK(references_.has(block) && !is_ours_and_ready, block.value, word.bits);

    const Content content = contents.at(i, end);
    const std::uint64_t known = find_uid(chain[i], content);
    // Another process has published equal content since this process drew its serials. A block's
    // serial must not be lower than its uid, so new serials are drawn.
    if (known > serial) [[unlikely]]
      serial = draw_serials(blocks.size() - i);
    const bool is_sound = is_publishable(block, word, end, serial);
    const std::uint64_t uid = known != 0 || !is_sound ? known : serial;
    if (is_sound) {
      write_content(block, {chain[i], uid, end.uid, serial, end.depth, end.group}, content);
      KV_KILL_POINT("publish.before_ready");
      make_ready(block, word, chain[i]);
    }
    advance(end, uid);
  }
  bump((*counters_)["published_blocks"], blocks.size());
  KV_KILL_POINT("publish.counted");
  return end;
}

/// Draws `count` serials that no process has had before, and returns the first. The shared counter
/// only rises. If it is lower than a serial that this process has drawn, it has lost a bit, and
/// this process raises it again.
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
  first_serial_ = std::min(first_serial_, first);  // it was read once, and may have been corrupt
  return first;
}

/// The uid under which this content was published before, in either tier; 0 if it was not. If two
/// processes have published the content under different uids at the same time, the uid of the block
/// that was published first, because a match finds that block.
std::uint64_t BlockPool::find_uid(Hash128 hash, const Content& content) {
  std::uint64_t uid = 0;
  std::uint64_t best_serial = ~0ull;
  index_.for_each(hash, [&](BlockId block) {
    if (!memory_.has_block(block)) return PrefixIndex::HintUse::drop;
    const BlockView b = view(block);
    bool is_same = false;
    std::uint64_t found = 0, serial = 0;
    const bool is_stable = read_stably(b, [&] {
      is_same = holds(block, b, content);
      KV_KILL_POINT("publish.compared");
      found = b.uid();
      serial = b.serial();
    });
    if (is_stable && is_same && serial < best_serial) uid = found, best_serial = serial;
    return PrefixIndex::HintUse::keep;
  });
  return uid;
}

}  // namespace kvhive
