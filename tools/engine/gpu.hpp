#pragma once
// An engine's GPU: opens what it needs of the device and makes the ring's parts that work on it.

#include <memory>

#include "actors/step_runner.hpp"
#include "actors/swapper.hpp"
#include "config/options.hpp"
#include "device/device_memory.hpp"
#include "models/model_config.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

/// What a model needs of a GPU and what the GPU has, in bytes; for sizing the pool.
struct GpuFigures {
  std::size_t total = 0;
  std::size_t available = 0;  ///< now, with other processes' memory taken off
  std::size_t weights = 0;    ///< shared by all engines
  std::size_t engine_peak = 0;
};
[[nodiscard]] Expected<GpuFigures> gpu_figures(Device& device, const Options& options,
                                               const ModelConfig& config);

/// In the order of dependence: a member uses those above it.
struct GpuParts {
  std::unique_ptr<Device> device;
  SharedDeviceMemory arena, weights;
  LockedPages host_arena;
  OrderedStream eraser;
  EraseOnDevice erase;
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};
/// \param memory gets the address of its device arena; outlives the parts
/// \param fds the pool's; the device's and the host's arena are used
/// \param weights descriptor of the model's weights, from the keeper
[[nodiscard]] Expected<std::unique_ptr<GpuParts>> attach_gpu(std::unique_ptr<Device> device,
                                                             const Options& options,
                                                             const ModelConfig& config,
                                                             PoolMemory& memory, const PoolFds& fds,
                                                             const UniqueFd& weights);

}  // namespace kvhive
