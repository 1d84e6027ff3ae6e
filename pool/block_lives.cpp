#include "pool/block_lives.hpp"

#include <algorithm>

#include "base/kill_point.hpp"
#include "base/stop_watch.hpp"

namespace kvhive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

/// The finaliser of SplitMix64: every bit of the place reaches every bit of the result.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ value >> 27) * 0x94d049bb133111ebull;
  return value ^ value >> 31;
}

}  // namespace

BlockLives::BlockLives(const PoolMemory& memory)
    : records_(memory.lives()),
      device_blocks_(memory.geometry().device_blocks),
      stride_(memory.geometry().life_stride),
      seed_(memory.control().header.epoch_uuid[0]) {}

bool BlockLives::is_measured(BlockId block) const {
  if (stride_ == 0 || block.value >= device_blocks_) return false;
  const std::uint32_t stretch = block.value / stride_;
  const std::uint32_t first = std::max(stretch * stride_, 1u);  // without the null block
  const std::uint32_t end = std::min((stretch + 1) * stride_, device_blocks_);
  return block.value == first + mixed(seed_ + stretch) % std::max(end - first, 1u);
}

std::optional<BlockLife> BlockLives::renew(BlockId block, std::uint64_t now) const {
  LifeRecord& r = record(block);
  // Taken away before it is told, so that it is told at most once.
  const std::uint64_t began = r.began.exchange(0, kRelaxed);
  KV_KILL_POINT("life.ended");
  std::array<std::uint64_t, 4> uses{};
  std::size_t count = 0;
  for (std::atomic<std::uint64_t>& used : r.used)
    if (const std::uint64_t at = used.exchange(0, kRelaxed); at >= began && at <= now && at != 0)
      uses.at(count++) = at;
  r.uses.store(0, kRelaxed);
  r.began.store(now, kRelaxed);
  KV_KILL_POINT("life.begun");
  if (began == 0 || began > now) return std::nullopt;
  std::ranges::sort(uses);  // places without a use are 0, and come first
  BlockLife life{.length = now - began, .idle = now - std::max(began, uses.back())};
  for (std::size_t i = uses.size() - count + 1; i < uses.size(); ++i)
    life.all_gaps.at(life.gap_count++) = uses.at(i) - uses.at(i - 1);
  return life;
}

void BlockLives::use(std::span<const BlockId> blocks) const {
  if (!are_measured()) return;
  std::uint64_t at = 0;
  for (const BlockId block : blocks) {
    if (!is_measured(block)) continue;
    if (at == 0) at = monotonic_ns();
    use(block, at);
  }
}

void BlockLives::use(BlockId block, std::uint64_t now) const {
  LifeRecord& r = record(block);
  if (r.began.load(kRelaxed) == 0) return;
  r.used[r.uses.fetch_add(1, kRelaxed) % r.used.size()].store(now, kRelaxed);
}

void BlockLives::forget() const {
  if (!are_measured()) return;
  for (std::uint32_t first = 0; first < device_blocks_; first += stride_)
    record(BlockId{first}).began.store(0, kRelaxed);
}

}  // namespace kvhive
