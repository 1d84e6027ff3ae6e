#pragma once
// Moves blocks between a GPU and page-locked memory, both ways at once, on streams of its own. The
// runner's stream waits for them; the host does now and then, to know what they cost.

#include <functional>
#include <span>

#include "actors/swapper.hpp"
#include "device/device_memory.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// Block copies on a stream: kernels/cuda's swap_blocks_cuda.
using CopyOnDevice = std::function<Expected<void>(const BlockCopyArgs&, DeviceStream)>;

/// Zeroes blocks of the device arena, whose block 0 is at `arena`; they are zero when it returns.
Expected<void> zero_blocks(Device& device, const Lane& lane, std::byte* arena,
                           std::size_t block_bytes, std::span<const BlockId> blocks);

class DeviceSwapper final : public Swapper {
 public:
  /// \param memory  with its device arena set and the host arena page-locked
  static Expected<std::unique_ptr<DeviceSwapper>> create(Device& device, const PoolMemory& memory,
                                                         CopyOnDevice copy);

  Expected<double> move(const StepPlan& plan) override;

  /// Makes the runner's stream wait for the plan's swaps, which move() has started.
  Expected<void> join(const StepPlan& plan, const Lane& runner) const;

 private:
  DeviceSwapper(Device& device, const PoolMemory& memory, CopyOnDevice copy, Lane out, Lane in)
      : device_(device),
        memory_(memory),
        copy_(std::move(copy)),
        out_(std::move(out)),
        in_(std::move(in)) {}

  Expected<void> start(const StepPlan& plan) const;
  Expected<void> copy(const std::byte* from, std::byte* to, std::span<const BlockPair> pairs,
                      std::uint32_t BlockPair::*host_block, const Lane& lane) const;
  Expected<void> hand_over(const StepPlan& plan) const;

  Device& device_;
  const PoolMemory& memory_;
  CopyOnDevice copy_;
  Lane out_, in_;
  std::uint32_t unmeasured_ = 0;  ///< plans with copies since the last that was
};

}  // namespace kvhive
