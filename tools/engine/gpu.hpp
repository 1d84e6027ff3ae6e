#pragma once
// An engine's part of a GPU: the device, what it maps of it, and who works on it.

#include <memory>

#include "actors/step_runner.hpp"
#include "actors/swapper.hpp"
#include "config/options.hpp"
#include "device/device_memory.hpp"
#include "models/model_config.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

/// What a model takes of a GPU and what there is, for sizing the pool.
struct GpuFigures {
  std::size_t total = 0;
  std::size_t available = 0;  ///< now, other programs counted
  std::size_t weights = 0;    ///< shared by all engines
  std::size_t engine_peak = 0;
};
Expected<GpuFigures> gpu_figures(Device& device, const Options& options, const ModelConfig& config);

/// Members are in the order they need each other.
struct GpuParts {
  std::unique_ptr<Device> device;
  SharedDeviceMemory arena, weights;
  LockedPages host_arena;
  OrderedStream eraser;
  EraseOnDevice erase;
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};
/// \param memory  gets to know where its device arena is; outlives the parts
/// \param fds     of the pool: the device's and the host's arenas
/// \param weights of the model, from the keeper
Expected<std::unique_ptr<GpuParts>> attach_gpu(std::unique_ptr<Device> device,
                                               const Options& options, const ModelConfig& config,
                                               PoolMemory& memory, const PoolFds& fds,
                                               const UniqueFd& weights);

}  // namespace kvhive
