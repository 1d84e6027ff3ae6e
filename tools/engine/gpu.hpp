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

/// Makes what all engines share, the arena (zeroed) and the weights: two descriptors, which keep
/// the memory when this process is gone, or need the device if its facts say so.
struct GpuMemory {
  UniqueFd arena, weights;
};
Expected<GpuMemory> make_gpu_memory(Device& device, const Options& options,
                                    const ModelConfig& config, std::size_t arena_bytes);

/// Members are in the order they need each other.
struct GpuParts {
  std::unique_ptr<Device> device;
  SharedDeviceMemory arena, weights;
  LockedPages host_arena;
  Lane eraser;
  EraseOnDevice erase;
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};
/// \param memory  gets to know where its device arena is; outlives the parts
/// \param fds     of the pool: the device's and the host's arenas
/// \param weights what make_gpu_memory() made of them
Expected<std::unique_ptr<GpuParts>> attach_gpu(std::unique_ptr<Device> device,
                                               const Options& options, const ModelConfig& config,
                                               PoolMemory& memory, const PoolFds& fds,
                                               const UniqueFd& weights);

}  // namespace kvhive
