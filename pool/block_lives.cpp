#include "pool/block_lives.hpp"

#include <algorithm>
#include <ctime>

#include "base/kill_point.hpp"

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

std::uint64_t BlockLives::now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::uint64_t(now.tv_sec) * 1'000'000'000 + std::uint64_t(now.tv_nsec);
}

bool BlockLives::is_measured(BlockId block) const {
  if (stride_ == 0 || block.value >= device_blocks_) return false;
  return mixed(seed_ + block.value / stride_) % stride_ == block.value % stride_;
}

std::optional<BlockLife> BlockLives::renew(BlockId block, std::uint64_t now) const {
  LifeRecord& r = record(block);
  // Taken away before it is told, so that it is told at most once.
  const std::uint64_t began = r.began.exchange(0, kRelaxed);
  KV_KILL_POINT("life.ended");
  std::vector<std::uint64_t> uses;
  for (std::atomic<std::uint64_t>& used : r.used)
    if (const std::uint64_t at = used.exchange(0, kRelaxed); at >= began && at <= now && at != 0)
      uses.push_back(at);
  r.uses.store(0, kRelaxed);
  r.began.store(now, kRelaxed);
  KV_KILL_POINT("life.begun");
  if (began == 0 || began > now) return std::nullopt;
  std::ranges::sort(uses);
  BlockLife life{now - began, now - (uses.empty() ? began : uses.back()), {}};
  for (std::size_t i = 1; i < uses.size(); ++i) life.gaps.push_back(uses[i] - uses[i - 1]);
  return life;
}

void BlockLives::use(std::span<const BlockId> blocks) const {
  if (!are_measured()) return;
  std::uint64_t at = 0;
  for (const BlockId block : blocks) {
    if (!is_measured(block)) continue;
    if (at == 0) at = now();
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
  for (std::uint32_t id = 0; id < device_blocks_; id += stride_)
    record(BlockId{id}).began.store(0, kRelaxed);
}

}  // namespace kvhive
