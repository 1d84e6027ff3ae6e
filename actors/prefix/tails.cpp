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

void Tails::drop_old() {
  if (tails_.empty()) return;
  for (const std::uint64_t now = clock_(); !tails_.empty() && tails_.front().until <= now;)
    drop_first();
}

bool Tails::drop_all() {
  if (tails_.empty()) return false;
  while (!tails_.empty()) drop_first();
  return true;
}

void Tails::drop_first() {
  pool_.release(tails_.front().blocks);
  kept_ -= tails_.front().blocks.size();
  tails_.pop_front();
}

}  // namespace kvhive
