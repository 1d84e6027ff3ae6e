#pragma once
// An engine's GPU: attaches the device to the pool and makes the ring's swapper and runner for it.

#include <memory>

#include "actors/step_runner.hpp"
#include "actors/swapper.hpp"
#include "config/options.hpp"
#include "device/device_memory.hpp"
#include "models/config/model_config.hpp"
#include "pool/block_pool.hpp"

namespace kvhive {

/// How much memory a model needs on a GPU and how much the GPU has, in bytes. The pool is sized by
/// it.
struct GpuFigures {
  std::size_t total = 0;
  std::size_t available = 0;    ///< not used by any process now
  std::size_t weights = 0;      ///< shared by all engines
  std::size_t engine_peak = 0;  ///< what one engine takes besides weights and arena
};
[[nodiscard]] Expected<GpuFigures> gpu_figures(Device& device, const Options& options,
                                               const ModelConfig& config);

/// Everything that an engine has on a GPU. Each member may use those above it, so they are
/// destroyed in the reverse order.
struct GpuParts {
  std::unique_ptr<Device> device;
  SharedDeviceMemory arena, weights;
  LockedPages host_arena;
  OrderedStream eraser;
  EraseOnDevice erase;
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<StepRunner> runner;
};
/// Maps the shared GPU memory and makes the parts.
/// \param memory  attach_gpu() sets its device arena; outlives the parts
/// \param model   which of the pool's models it is
/// \param fds     the pool's descriptors; those of the device arena and the host arena are used
/// \param weights the descriptor of the model's weights, from the keeper
[[nodiscard]] Expected<std::unique_ptr<GpuParts>> attach_gpu(
    std::unique_ptr<Device> device, const Options& options, const ModelConfig& config,
    PoolMemory& memory, ModelId model, const PoolFds& fds, const UniqueFd& weights);

}  // namespace kvhive
