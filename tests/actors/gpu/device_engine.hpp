#pragma once
// An engine made of plain calls (no actors) whose device tier is the memory of a fake GPU.

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/gpu/device_swapper.hpp"
#include "base/exit_codes.hpp"
#include "kernels/simt/stream.hpp"
#include "tests/actors/plain_ring.hpp"
#include "tests/device/fake_device.hpp"

namespace kvhive::testing {

/// One device copy for each pair; the device checks the addresses.
inline CopyOnDevice plain_copies(Device& device) {
  return [&device](const BlockCopyArgs& args, DeviceStream stream) -> Expected<void> {
    for (const BlockPair& pair : std::span(args.pairs, args.pairs_count))
      if (auto started =
              device.copy(args.destination + pair.destination * args.destination_stride,
                          args.source + pair.source * args.source_stride, args.bytes, stream);
          !started)
        return started;
    return {};
  };
}

/// Copies as a kernel makes them: it reads the pairs when the stream reaches the copy.
inline CopyOnDevice late_copies() {
  return [](const BlockCopyArgs& args, DeviceStream stream) -> Expected<void> {
    stream->enqueue([args] { block_copy_reference(args); });
    return {};
  };
}

/// Alternates plain and late copies.
inline CopyOnDevice both_copies(Device& device) {
  return [plain = plain_copies(device), late = late_copies(), calls = 0](
             const BlockCopyArgs& args, DeviceStream stream) mutable {
    return calls++ % 2 == 0 ? plain(args, stream) : late(args, stream);
  };
}

/// The oracle as a kernel: its work is done on a stream, after the plan's swaps. The oracle needs
/// whole blocks, so for each layer it only checks that what would be read has come in.
class DeviceOracleRunner final : public StepRunner {
 public:
  DeviceOracleRunner(Device& device, const PoolMemory& memory, ProcessSlot slot,
                     DeviceSwapper& swapper, OrderedStream stream)
      : device_(device),
        memory_(memory),
        swapper_(swapper),
        oracle_(memory, slot),
        stream_(std::move(stream)) {}

  Expected<StepResults> run(const StepPlan& plan) override {
    // Queued work may run after a failed call has returned.
    const auto copied = std::make_shared<const StepPlan>(plan);
    const auto sampled = std::make_shared<StepResults>();
    auto done = swapper_.run_after_demotions(plan, stream_);
    for (std::uint32_t layer = 0; layer < memory_.geometry().models[0].kv.layers && done; ++layer) {
      done = swapper_.run_after_layer(plan, static_cast<std::int32_t>(layer), stream_);
      stream_.handle()->enqueue([=, this] { see(*copied, layer); });
    }
    const std::size_t bytes = memory_.geometry().models[0].kv.block_bytes();
    std::byte* const arena = memory_.arena(Tier::device);
    if (done)
      done =
          plain_copies(device_)(whole_blocks(arena, arena, bytes, plan.copies), stream_.handle());
    if (done) {
      stream_.handle()->enqueue([=, this] { *sampled = *oracle_.run(*copied); });
      done = stream_.finish();
    }
    if (done) done = swapper_.finish(plan);
    if (!done) return forward_error(done);
    return *sampled;
  }

 private:
  /// Loses the device if this layer of a swapped-in block differs from the host tier.
  void see(const StepPlan& plan, std::uint32_t layer) const {
    const KvLayout& kv = memory_.geometry().models[0].kv;
    const auto at = [&](Tier tier, std::uint32_t block) {
      return memory_.arena(tier) + block * kv.block_bytes() + layer * kv.layer_bytes();
    };
    for (const BlockPair& pair : plan.swap_in)
      if (std::memcmp(at(Tier::host, pair.source), at(Tier::device, pair.destination),
                      kv.layer_bytes()) != 0)
        throw std::runtime_error("layer " + std::to_string(layer) + " has not arrived");
  }

  Device& device_;
  const PoolMemory& memory_;
  DeviceSwapper& swapper_;
  OracleRunner oracle_;
  OrderedStream stream_;
};

/// A pool whose device tier only a device can map. Make it before any device, because the engines
/// that attach may be forked children.
struct DevicePool {
  DevicePool(std::uint32_t device_blocks, std::uint32_t host_blocks)
      : memory(private_pool(geometry(device_blocks, host_blocks))),
        bytes(PoolLayout(memory.geometry()).device_bytes),
        arena(*FakeDevice().create_shared(bytes)),
        host_lock(memfd_create("host-arena", MFD_CLOEXEC)) {}

  static PoolGeometry geometry(std::uint32_t device_blocks, std::uint32_t host_blocks) {
    PoolGeometry geometry = small_geometry(device_blocks, host_blocks, 4, 2);
    geometry.models[0].kv.layers = 4;
    geometry.device = DeviceKind::cuda;
    return geometry;
  }

  PoolMemory memory;
  std::size_t bytes;
  UniqueFd arena;
  UniqueFd host_lock;  ///< stands for the descriptor of the host arena
};

/// Only one per process, because it sets the address of the pool's device arena.
class DeviceEngine {
 public:
  /// Returns the device's failures, also those during attaching.
  static Expected<std::unique_ptr<DeviceEngine>> attach(FakeDevice& device, DevicePool& pool,
                                                        ProcessSlot slot,
                                                        const RingConfig& config) {
    auto engine = std::unique_ptr<DeviceEngine>(new DeviceEngine(device));
    auto arena = SharedDeviceMemory::map(device, pool.arena.get(), pool.bytes);
    if (!arena) return forward_error(arena);
    engine->arena_ = std::move(*arena);
    pool.memory.set_device_arena(engine->arena_.data());
    const PoolGeometry& geometry = pool.memory.geometry();
    auto pages = LockedPages::lock(device, pool.memory.arena(Tier::host),
                                   geometry.host_blocks * geometry.models[0].kv.block_bytes(),
                                   geometry.models[0].kv.block_bytes(), pool.host_lock.get());
    if (!pages) return forward_error(pages);
    engine->pages_ = std::move(*pages);
    auto eraser = OrderedStream::open(device);
    if (!eraser) return forward_error(eraser);
    engine->eraser_ = std::move(*eraser);
    auto runner_stream = OrderedStream::open(
        device);  // opened here, because the runner's constructor cannot return an error
    if (!runner_stream) return forward_error(runner_stream);
    // One layer per part, and an aside buffer smaller than a large step needs.
    auto swapper = DeviceSwapper::create(
        device, pool.memory, {both_copies(device), both_copies(device)},
        {.aside_bytes = 2 * geometry.models[0].kv.block_bytes(), .part_bytes = 1});
    if (!swapper) return forward_error(swapper);
    auto runner = std::make_unique<DeviceOracleRunner>(device, pool.memory, slot, **swapper,
                                                       std::move(*runner_stream));
    engine->ring_ = std::make_unique<PlainRing>(
        pool.memory, slot, config, std::move(*swapper), std::move(runner),
        [raw = engine.get()](std::span<const BlockId> blocks) { raw->erase(blocks); });
    engine->block_bytes_ = geometry.models[0].kv.block_bytes();
    return engine;
  }

  PlainRing& ring() { return *ring_; }

 private:
  explicit DeviceEngine(FakeDevice& device) : device_(device) {}

  /// Ends the process on an error, as an engine does.
  void erase(std::span<const BlockId> blocks) {
    if (!zero_blocks(device_, eraser_, arena_.data(), block_bytes_, blocks)) _exit(kExitDeviceLost);
  }

  FakeDevice& device_;
  SharedDeviceMemory arena_;
  LockedPages pages_;
  OrderedStream eraser_;
  std::size_t block_bytes_ = 0;
  std::unique_ptr<PlainRing> ring_;
};

}  // namespace kvhive::testing
