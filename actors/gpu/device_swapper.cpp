#include "actors/gpu/device_swapper.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/stop_watch.hpp"
#include "kernels/block_copy.hpp"
#include "pool/scrub.hpp"

namespace kvhive {

Expected<void> zero_blocks(Device& device, const OrderedStream& stream, std::byte* arena,
                           std::size_t block_bytes, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks)
    if (auto started = device.fill(arena + block.value * block_bytes, std::byte{0}, block_bytes,
                                   stream.handle());
        !started)
      return started;
  return stream.finish();
}

DeviceSwapper::DeviceSwapper(Device& device, const PoolMemory& memory, SwapCopies copies,
                             const SwapLimits& limits, ModelId model)
    : device_(device),
      memory_(memory),
      copies_(std::move(copies)),
      parts_(memory.geometry()[model].kv, limits.part_bytes),
      block_bytes_(memory.geometry().block_bytes()) {}

DeviceSwapper::~DeviceSwapper() {
  if (!is_under_way_) return;
  // Waits, because the streams still use the memory that is freed next. Errors are ignored: the
  // call that failed first has reported them.
  (void)aside_.finish();
  (void)out_.finish();
  for (const OrderedStream& stream : in_) (void)stream.finish();
}

Expected<std::unique_ptr<DeviceSwapper>> DeviceSwapper::create(Device& device,
                                                               const PoolMemory& memory,
                                                               SwapCopies copies,
                                                               const SwapLimits& limits,
                                                               ModelId model) {
  auto swapper = std::unique_ptr<DeviceSwapper>(
      new DeviceSwapper(device, memory, std::move(copies), limits, model));
  if (auto prepared = swapper->prepare(limits); !prepared) return forward_error(prepared);
  return swapper;
}

Expected<void> DeviceSwapper::prepare(const SwapLimits& limits) {
  in_.resize(parts_.count());
  std::vector<OrderedStream*> streams{&aside_, &out_};
  for (OrderedStream& stream : in_) streams.push_back(&stream);
  for (OrderedStream* const stream : streams) {
    auto opened = OrderedStream::open(device_);
    if (!opened) return forward_error(opened);
    *stream = std::move(*opened);
  }
  const PoolGeometry& geometry = memory_.geometry();
  if (geometry.host_blocks == 0) return {};  // nothing will ever be swapped
  aside_blocks_ = static_cast<std::uint32_t>(
      std::min<std::size_t>(limits.aside_bytes / block_bytes_, geometry.host_blocks));
  if (aside_blocks_ != 0) {
    auto room = DeviceBuffer::allocate(device_, aside_blocks_ * block_bytes_);
    if (!room) return forward_error(room);
    aside_buffer_ = std::move(*room);
  }
  // A plan writes each host block and each device block at most once; a copy through the aside
  // buffer takes two pairs.
  pairs_capacity_ = std::size_t{geometry.host_blocks} + geometry.device_blocks + aside_blocks_;
  auto pairs = StagingBuffer::allocate(device_, pairs_capacity_ * sizeof(BlockPair));
  if (!pairs) return forward_error(pairs);
  pairs_ = std::move(*pairs);
  return {};
}

Expected<double> DeviceSwapper::move(const StepPlan& plan) {
  constexpr std::uint32_t kMeasuredEvery = 32;
  KV_CHECK(!is_under_way_);
  const bool has_swaps = plan.copied_blocks() != 0;
  const StopWatch watch;
  is_under_way_ = has_swaps;
  pairs_taken_ = 0;
  auto started = start_out(plan);
  if (started) started = change_domains(plan);
  if (started) started = start_in(plan);
  if (!started) return forward_error(started);
  if (!has_swaps || plans_with_copies_++ % kMeasuredEvery != 0) return 0.0;
  if (auto done = finish(plan); !done) return forward_error(done);
  return watch.seconds();
}

/// Starts the copies to the host. Demotions come first, since this step overwrites their blocks and
/// the runner waits for them. The mark on out_ stands after the demotions that go directly to the
/// host, and before the blocks of preempted sequences, for which only the step's end waits.
Expected<void> DeviceSwapper::start_out(const StepPlan& plan) {
  // A plan without work does not use the aside buffer: there is no computing that the copy from it
  // could overlap with.
  const std::size_t count =
      plan.work.empty() ? 0 : std::min<std::size_t>(plan.demotions.size(), aside_blocks_);
  const std::span demotions(plan.demotions);
  auto started = copy_out(demotions.subspan(count));
  if (started && count < demotions.size()) started = out_.mark();
  if (started) started = demote_through_aside(demotions.first(count));
  if (started) started = copy_out(plan.swap_out);
  return started;
}

Expected<void> DeviceSwapper::copy_out(std::span<const BlockPair> pairs) {
  return copy_chunks(whole_blocks(memory_.arena(Tier::device), memory_.arena(Tier::host),
                                  block_bytes_, copy_pairs(pairs)),
                     &BlockPair::destination, out_);
}

Expected<void> DeviceSwapper::demote_through_aside(std::span<const BlockPair> pairs) {
  if (pairs.empty()) return {};
  const auto leaving = take_pairs(pairs.size()), arriving = take_pairs(pairs.size());
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    leaving[i] = {pairs[i].source, i};
    arriving[i] = {i, pairs[i].destination};
  }
  std::byte* const aside = aside_buffer_.data();
  auto started = copies_.within(
      whole_blocks(memory_.arena(Tier::device), aside, block_bytes_, leaving), aside_.handle());
  if (started) started = aside_.mark();
  if (started) started = out_.run_after(aside_);
  if (started)
    started = copy_chunks(whole_blocks(aside, memory_.arena(Tier::host), block_bytes_, arriving),
                          &BlockPair::destination, out_);
  return started;
}

/// Zeroes the blocks that go to another domain, after their bytes have been copied away, and then
/// writes the new domain into their descriptors. If the process is killed in between, the
/// descriptors still name the old domain, and the next process zeroes the blocks again. The host
/// waits for the zeroing, which is rare.
Expected<void> DeviceSwapper::change_domains(const StepPlan& plan) const {
  if (plan.domain_changes.empty()) return {};
  std::vector<BlockId> blocks;
  for (const auto& [block, domain] : plan.domain_changes) blocks.push_back(block);
  auto zeroed = aside_.run_after(out_);
  if (zeroed)
    zeroed = zero_blocks(device_, aside_, memory_.arena(Tier::device), block_bytes_, blocks);
  if (!zeroed) return zeroed;
  for (const auto& [block, domain] : plan.domain_changes)
    kvhive::change_domain(memory_, block, domain);
  return {};
}

Expected<void> DeviceSwapper::start_in(const StepPlan& plan) {
  if (plan.swap_in.empty()) return {};
  const auto pairs = copy_pairs(plan.swap_in);
  auto started = run_after_demotions(plan, in_.front());
  for (std::uint32_t part = 0; part < parts_.count() && started; ++part) {
    const OrderedStream& stream = in_[part];
    if (part != 0) started = stream.run_after(in_[part - 1]);
    BlockCopyArgs args =
        whole_blocks(memory_.arena(Tier::host) + parts_.offset(part),
                     memory_.arena(Tier::device) + parts_.offset(part), block_bytes_, pairs);
    args.bytes = parts_.bytes(part);
    if (started) started = copy_chunks(args, &BlockPair::source, stream);
    if (started) started = stream.mark();
  }
  return started;
}

/// Returns room for pairs in page-locked memory. The device can read them there until finish().
std::span<BlockPair> DeviceSwapper::take_pairs(std::size_t count) {
  KV_CHECK(pairs_taken_ + count <= pairs_capacity_, pairs_taken_, count, pairs_capacity_);
  const std::span taken(reinterpret_cast<BlockPair*>(pairs_.data()) + pairs_taken_, count);
  pairs_taken_ += count;
  return taken;
}

std::span<const BlockPair> DeviceSwapper::copy_pairs(std::span<const BlockPair> pairs) {
  const auto copied = take_pairs(pairs.size());
  std::ranges::copy(pairs, copied.begin());
  return copied;
}

/// Starts the copies in groups, so that the host blocks of a group lie in one registered range of
/// host memory: CUDA does not make one copy across two registered ranges.
Expected<void> DeviceSwapper::copy_chunks(const BlockCopyArgs& all,
                                          std::uint32_t BlockPair::*host_block,
                                          const OrderedStream& stream) const {
  const std::size_t blocks_a_chunk = LockedPages::chunk_bytes(block_bytes_) / block_bytes_;
  const std::span pairs(all.pairs, all.pairs_count);
  const auto chunk_of = [&](const BlockPair& pair) { return pair.*host_block / blocks_a_chunk; };
  for (std::size_t first = 0, end = 0; first < pairs.size(); first = end) {
    for (end = first + 1; end < pairs.size() && chunk_of(pairs[end]) == chunk_of(pairs[first]);)
      ++end;
    BlockCopyArgs together = all;
    together.pairs = &pairs[first];
    together.pairs_count = end - first;
    if (auto started = copies_.between(together, stream.handle()); !started) return started;
  }
  return {};
}

Expected<void> DeviceSwapper::run_after_demotions(const StepPlan& plan,
                                                  const OrderedStream& runner) const {
  if (plan.demotions.empty()) return {};
  auto joined = runner.run_after(out_);
  if (joined) joined = runner.run_after(aside_);
  return joined;
}

Expected<void> DeviceSwapper::run_after_swap_in(const StepPlan& plan,
                                                const OrderedStream& runner) const {
  if (plan.swap_in.empty()) return {};
  return runner.run_after(in_.back());
}

Expected<void> DeviceSwapper::run_after_layer(const StepPlan& plan, std::int32_t layer,
                                              const OrderedStream& runner) const {
  if (plan.swap_in.empty()) return {};
  for (std::uint32_t part = 0; part < parts_.count(); ++part)
    if (parts_.first_layer(part) == static_cast<std::uint32_t>(layer))
      return runner.run_after(in_[part]);
  return {};
}

Expected<void> DeviceSwapper::finish(const StepPlan& plan) {
  Expected<void> done;
  if (!plan.swap_out.empty() || !plan.demotions.empty()) done = out_.finish();
  if (done && !plan.swap_in.empty()) done = in_.back().finish();
  if (done) is_under_way_ = false;
  return done;
}

}  // namespace kvhive
