// The GPU functions for builds without CUDA. Such a build cannot open a device, so these functions
// are never called.

#include "tools/engine/gpu.hpp"
#include "tools/engine/gpu_memory.hpp"

namespace kvhive {
namespace {

tl::unexpected<Error> no_gpu() { return failure(Errc::unsupported, "built without CUDA"); }

}  // namespace

Expected<GpuFigures> gpu_figures(Device&, const Options&, const ModelConfig&) { return no_gpu(); }

Expected<void> make_and_send_gpu_memory(Device&, const Options&, std::size_t) { return no_gpu(); }

Expected<std::unique_ptr<GpuParts>> attach_gpu(std::unique_ptr<Device>, const Options&,
                                               const ModelConfig&, PoolMemory&, ModelId,
                                               const PoolFds&, const UniqueFd&) {
  return no_gpu();
}

}  // namespace kvhive
