#include "actors/prefix/tails.hpp"

#include <algorithm>

namespace kvhive {

void Tails::keep(const Place& place, std::span<const TokenId> tokens, std::vector<BlockId> blocks) {
  if (blocks.size() > most_) return pool_.release(blocks);
  while (kept_ + blocks.size() > most_) drop_first();
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

std::size_t Tails::kept(std::optional<DomainId> domain) const {
  if (!domain) return kept_;
  std::size_t blocks = 0;
  for (const Tail& tail : tails_)
    if (tail.place.parent.domain == *domain) blocks += tail.blocks.size();
  return blocks;
}

void Tails::drop(std::optional<DomainId> domain) {
  std::erase_if(tails_, [&](const Tail& tail) {
    if (domain && tail.place.parent.domain != *domain) return false;
    release(tail);
    return true;
  });
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
