#include "actors/device_swapper.hpp"

#include <vector>

#include "config/stop_watch.hpp"
#include "kernels/block_copy.hpp"
#include "pool/scrub.hpp"

namespace kvhive {

Expected<void> zero_blocks(Device& device, const Lane& lane, std::byte* arena,
                           std::size_t block_bytes, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks)
    if (auto started = device.fill(arena + block.value * block_bytes, std::byte{0}, block_bytes,
                                   lane.stream());
        !started)
      return started;
  return lane.finish();
}

Expected<std::unique_ptr<DeviceSwapper>> DeviceSwapper::create(Device& device,
                                                               const PoolMemory& memory,
                                                               CopyOnDevice copy) {
  auto out = Lane::open(device);
  if (!out) return forward_error(out);
  auto in = Lane::open(device);
  if (!in) return forward_error(in);
  return std::unique_ptr<DeviceSwapper>(
      new DeviceSwapper(device, memory, std::move(copy), std::move(*out), std::move(*in)));
}

Expected<double> DeviceSwapper::move(const StepPlan& plan) {
  constexpr std::uint32_t kMeasuredEvery = 32;
  const StopWatch watch;
  if (auto started = start(plan); !started) return forward_error(started);
  if (plan.swap_out.empty() && plan.swap_in.empty()) return 0.0;
  if (unmeasured_++ % kMeasuredEvery != 0) return 0.0;
  for (const Lane* lane : {&out_, &in_})
    if (auto done = lane->finish(); !done) return forward_error(done);
  return watch.seconds();
}

Expected<void> DeviceSwapper::start(const StepPlan& plan) const {
  std::byte* const device = memory_.arena(Tier::device);
  std::byte* const host = memory_.arena(Tier::host);
  if (!plan.swap_out.empty()) {
    auto started = copy(device, host, plan.swap_out, &BlockPair::destination, out_);
    if (started) started = out_.mark();
    if (!started) return started;
  }
  if (auto handed_over = hand_over(plan); !handed_over) return handed_over;
  if (!plan.swap_in.empty()) {
    Expected<void> started;
    if (!plan.swap_out.empty()) started = in_.wait_for(out_);
    if (started) started = copy(host, device, plan.swap_in, &BlockPair::source, in_);
    if (started) started = in_.mark();
    if (!started) return started;
  }
  return {};
}

/// Nothing that the device copies as one spans two registrations of host memory.
Expected<void> DeviceSwapper::copy(const std::byte* from, std::byte* to,
                                   std::span<const BlockPair> pairs,
                                   std::uint32_t BlockPair::*host_block, const Lane& lane) const {
  const std::size_t bytes = memory_.geometry().kv.block_bytes();
  const std::size_t blocks_a_chunk = LockedPages::chunk_bytes(bytes) / bytes;
  const auto chunk_of = [&](const BlockPair& pair) { return pair.*host_block / blocks_a_chunk; };
  for (std::size_t first = 0, end = 0; first < pairs.size(); first = end) {
    for (end = first + 1; end < pairs.size() && chunk_of(pairs[end]) == chunk_of(pairs[first]);)
      ++end;
    const auto together = pairs.subspan(first, end - first);
    if (auto started = copy_(whole_blocks(from, to, bytes, together), lane.stream()); !started)
      return started;
  }
  return {};
}

/// Seldom, so the host waits: a block is zeroed first, and only then it is the other domain's.
Expected<void> DeviceSwapper::hand_over(const StepPlan& plan) const {
  if (plan.hand_over.empty()) return {};
  std::vector<BlockId> blocks;
  for (const auto& [block, domain] : plan.hand_over) blocks.push_back(block);
  if (auto zeroed = zero_blocks(device_, out_, memory_.arena(Tier::device),
                                memory_.geometry().kv.block_bytes(), blocks);
      !zeroed)
    return zeroed;
  for (const auto& [block, domain] : plan.hand_over) kvhive::hand_over(memory_, block, domain);
  return {};
}

Expected<void> DeviceSwapper::join(const StepPlan& plan, const Lane& runner) const {
  Expected<void> joined;
  if (!plan.swap_out.empty()) joined = runner.wait_for(out_);
  if (joined && !plan.swap_in.empty()) joined = runner.wait_for(in_);
  return joined;
}

}  // namespace kvhive
