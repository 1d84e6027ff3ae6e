#pragma once
// Copies blocks between a GPU and page-locked host memory, in both directions at the same time, on
// its own streams, while the model computes.
//
// To the host: a block that is demoted is first copied to an aside buffer on the device, and from
// there to the host. The runner's stream and the copies to the device wait only for the first,
// short copy. If the aside buffer is full, the block is copied directly to the host, and they wait
// for that. Blocks of preempted sequences are not overwritten in this step, so nothing waits for
// their copies.
//
// To the device: blocks are copied in parts of whole layers. The runner's stream waits for a part
// before it computes the part's first layer.
//
// The host waits for all copies at the end of the step. For every 32nd plan with copies, the host
// waits right after starting them, to measure how long copies take.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/gpu/layer_parts.hpp"
#include "actors/swapper.hpp"
#include "device/device_memory.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// Starts block copies on a stream, as swap_blocks_cuda (kernels/cuda) does. The device reads
/// `pairs` while it makes the copies: they must be in page-locked memory and stay unchanged until
/// the stream has finished the copies.
using CopyOnDevice = std::function<Expected<void>(const BlockCopyArgs&, DeviceStream)>;

/// Zeroes blocks of the device arena whose block 0 is at `arena`. Waits until they are zero.
[[nodiscard]] Expected<void> zero_blocks(Device& device, const OrderedStream& stream,
                                         std::byte* arena, std::size_t block_bytes,
                                         std::span<const BlockId> blocks);

struct SwapCopies {
  CopyOnDevice between;  ///< copies between the device and page-locked host memory
  CopyOnDevice within;   ///< copies within the device
};

struct SwapLimits {
  std::size_t aside_bytes = std::size_t{64} << 20;  ///< size of the aside buffer on the device
  /// The fewest bytes that a part of a block may have, unless the block has only one part.
  std::size_t part_bytes = std::size_t{256} << 10;
};

/// Used by only one thread at a time: in each step first by the swapper's thread, then by the
/// runner's.
class DeviceSwapper final : public Swapper {
 public:
  /// \param memory its device arena is set, and its host arena is page-locked
  /// \param model  whose layers are copied to the device one after the other
  [[nodiscard]] static Expected<std::unique_ptr<DeviceSwapper>> create(
      Device& device, const PoolMemory& memory, SwapCopies copies, const SwapLimits& limits = {},
      ModelId model = {});
  ~DeviceSwapper() override;

  /// Starts the plan's copies. Call finish() before the next move().
  [[nodiscard]] Expected<double> move(const StepPlan& plan) override;

  /// Work that is put on `runner` after this call runs after the demoted blocks have been copied
  /// away.
  [[nodiscard]] Expected<void> run_after_demotions(const StepPlan& plan,
                                                   const OrderedStream& runner) const;
  /// Work that is put on `runner` after this call runs after all blocks have been copied to the
  /// device.
  [[nodiscard]] Expected<void> run_after_swap_in(const StepPlan& plan,
                                                 const OrderedStream& runner) const;
  /// Work that is put on `runner` after this call runs after this layer of all blocks has been
  /// copied to the device. The caller calls it for every layer in order; only the first layer of
  /// each part waits.
  [[nodiscard]] Expected<void> run_after_layer(const StepPlan& plan, std::int32_t layer,
                                               const OrderedStream& runner) const;
  const LayerParts& parts() const { return parts_; }

  /// Waits, on the host, until all of the plan's copies are done. Nothing of the step may be
  /// published before.
  [[nodiscard]] Expected<void> finish(const StepPlan& plan);

 private:
  DeviceSwapper(Device& device, const PoolMemory& memory, SwapCopies copies,
                const SwapLimits& limits, ModelId model);

  [[nodiscard]] Expected<void> prepare(const SwapLimits& limits);
  [[nodiscard]] Expected<void> start_out(const StepPlan& plan);
  [[nodiscard]] Expected<void> copy_out(std::span<const BlockPair> pairs);
  [[nodiscard]] Expected<void> demote_through_aside(std::span<const BlockPair> pairs);
  [[nodiscard]] Expected<void> change_domains(const StepPlan& plan) const;
  [[nodiscard]] Expected<void> start_in(const StepPlan& plan);
  std::span<BlockPair> take_pairs(std::size_t count);
  std::span<const BlockPair> copy_pairs(std::span<const BlockPair> pairs);
  [[nodiscard]] Expected<void> copy_chunks(const BlockCopyArgs& all,
                                           std::uint32_t BlockPair::*host_block,
                                           const OrderedStream& stream) const;

  Device& device_;
  const PoolMemory& memory_;
  SwapCopies copies_;
  LayerParts parts_;
  std::size_t block_bytes_;
  std::uint32_t aside_blocks_ = 0;
  DeviceBuffer aside_buffer_;  ///< room for aside_blocks_ blocks
  StagingBuffer pairs_;        ///< the pairs of the current plan
  std::size_t pairs_capacity_ = 0, pairs_taken_ = 0;
  bool is_under_way_ = false;  ///< true between move() and finish(), if the plan has copies
  /// Plans with copies so far. The copies of every 32nd such plan are timed.
  std::uint32_t plans_with_copies_ = 0;
  OrderedStream aside_, out_;      ///< aside_: copies within the device; out_: copies to the host
  std::vector<OrderedStream> in_;  ///< one per part; each runs after the one before it
};

}  // namespace kvhive
