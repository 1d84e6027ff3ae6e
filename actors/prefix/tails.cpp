#include "actors/prefix/tails.hpp"

#include <algorithm>
#include <map>

namespace kvhive {

void Tails::keep(const Place& place, std::span<const TokenId> tokens, std::vector<BlockId> blocks) {
  if (blocks.size() > most_) return pool_.release(blocks);
  while (kept_ + blocks.size() > most_) drop_of_largest();
  kept_ += blocks.size();
  tails_.push_back({place, {tokens.begin(), tokens.end()}, std::move(blocks), clock_() + kLife});
}

std::optional<Tails::Found> Tails::find(const Place& place, std::span<const TokenId> tokens) const {
  Found best;
  for (const Tail& tail : tails_) {
    if (tail.place != place) continue;
    const auto common = std::ranges::mismatch(tail.tokens, tokens).in1 - tail.tokens.begin();
    if (const auto count = static_cast<std::size_t>(common); count > best.tokens)
      best = {tail.blocks, count};
  }
  return best.tokens != 0 ? std::optional(best) : std::nullopt;
}

std::size_t Tails::kept(const Domains& is_one) const {
  std::size_t blocks = 0;
  for (const Tail& tail : tails_)
    if (is_one(tail.place.parent.domain)) blocks += tail.blocks.size();
  return blocks;
}

void Tails::drop(const Domains& is_one) {
  std::erase_if(tails_, [&](const Tail& tail) {
    if (!is_one(tail.place.parent.domain)) return false;
    release(tail);
    return true;
  });
}

/// The oldest of the domain that keeps most, so that none can push out those of others.
void Tails::drop_of_largest() {
  std::map<DomainId, std::size_t> kept;
  for (const Tail& tail : tails_) kept[tail.place.parent.domain] += tail.blocks.size();
  const DomainId largest =
      std::ranges::max_element(kept, {}, &decltype(kept)::value_type::second)->first;
  const auto oldest =
      std::ranges::find(tails_, largest, [](const Tail& tail) { return tail.place.parent.domain; });
  release(*oldest);
  tails_.erase(oldest);
}

void Tails::drop_old() {
  if (tails_.empty()) return;
  for (const std::uint64_t now = clock_(); !tails_.empty() && tails_.front().until <= now;)
    drop_first();
}

void Tails::drop_first() {
  release(tails_.front());
  tails_.pop_front();
}

void Tails::release(const Tail& tail) {
  pool_.release(tail.blocks);
  kept_ -= tail.blocks.size();
}

}  // namespace kvhive
