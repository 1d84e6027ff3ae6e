#pragma once
// Moves blocks between a GPU and page-locked memory, both ways at once, on streams of its own, and
// while the model computes:
//   out  what is demoted is copied aside within the device, which is all that the runner's stream
//        and the copies in wait for, and from there to the host. What there is no room for aside
//        goes to the host directly, and is waited for. Of preempted sequences nothing is waited
//        for: their blocks stay as they are.
//   in   by parts of whole layers: the runner's stream waits for a part before its first layer.
// The host waits for all of it at the end of the step; and now and then before it, to know what
// copies cost.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/gpu/layer_parts.hpp"
#include "actors/swapper.hpp"
#include "device/device_memory.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// Block copies on a stream: kernels/cuda's swap_blocks_cuda. `pairs` may be read when the copy's
/// turn comes, and by the device: they are page-locked, and stay until the stream has passed.
using CopyOnDevice = std::function<Expected<void>(const BlockCopyArgs&, DeviceStream)>;

/// Zeroes blocks of the device arena, whose block 0 is at `arena`; they are zero when it returns.
Expected<void> zero_blocks(Device& device, const OrderedStream& stream, std::byte* arena,
                           std::size_t block_bytes, std::span<const BlockId> blocks);

struct SwapCopies {
  CopyOnDevice between;  ///< the device and page-locked memory
  CopyOnDevice within;   ///< the device
};

struct SwapLimits {
  std::size_t aside_bytes = std::size_t{64} << 20;  ///< of the device, for what is demoted
  std::size_t part_bytes = std::size_t{256} << 10;  ///< of a block, at least; or it is one part
};

/// Used by one thread at a time: the swapper's, then the runner's.
class DeviceSwapper final : public Swapper {
 public:
  /// \param memory  with its device arena set and the host arena page-locked
  static Expected<std::unique_ptr<DeviceSwapper>> create(Device& device, const PoolMemory& memory,
                                                         SwapCopies copies,
                                                         const SwapLimits& limits = {});
  ~DeviceSwapper() override;

  /// Starts the plan's swaps. Not before the last plan's finish().
  Expected<double> move(const StepPlan& plan) override;

  /// Makes the runner's stream wait until what is demoted has left its blocks.
  Expected<void> join_out(const StepPlan& plan, const OrderedStream& runner) const;
  /// ... until all that comes in is there.
  Expected<void> join_in(const StepPlan& plan, const OrderedStream& runner) const;
  /// ... until this layer of what comes in is there. Called for every layer in order: only the
  /// first of a part waits.
  Expected<void> join_layer(const StepPlan& plan, std::int32_t layer,
                            const OrderedStream& runner) const;
  const LayerParts& parts() const { return parts_; }

  /// The host waits until all of the plan's swaps are done: nothing is published before.
  Expected<void> finish(const StepPlan& plan);

 private:
  DeviceSwapper(Device& device, const PoolMemory& memory, SwapCopies copies,
                const SwapLimits& limits);

  Expected<void> prepare(const SwapLimits& limits);
  Expected<void> start_out(const StepPlan& plan);
  Expected<void> copy_out(std::span<const BlockPair> pairs);
  Expected<void> demote_aside(std::span<const BlockPair> pairs);
  Expected<void> change_domains(const StepPlan& plan) const;
  Expected<void> start_in(const StepPlan& plan);
  std::span<BlockPair> take_pairs(std::size_t count);
  std::span<const BlockPair> keep(std::span<const BlockPair> pairs);
  Expected<void> copy_chunks(const BlockCopyArgs& all, std::uint32_t BlockPair::*host_block,
                             const OrderedStream& stream) const;

  Device& device_;
  const PoolMemory& memory_;
  SwapCopies copies_;
  LayerParts parts_;
  std::size_t block_bytes_;
  std::uint32_t aside_blocks_ = 0;
  DeviceBuffer room_aside_;  ///< [aside_blocks_] blocks
  StagingBuffer pairs_;      ///< of the running plan
  std::size_t pairs_room_ = 0, pairs_taken_ = 0;
  bool is_under_way_ = false;  ///< between move() and finish()
  /// So far; the first of every so many is waited for and timed.
  std::uint32_t plans_with_copies_ = 0;
  OrderedStream aside_, out_;      ///< out_'s mark: behind what goes directly
  std::vector<OrderedStream> in_;  ///< one for each part, each behind the one before
};

}  // namespace kvhive
