// For builds without CUDA: there is no device to get that far with.

#include "tools/engine/gpu.hpp"

namespace kvhive {
namespace {

tl::unexpected<Error> no_gpu() {
  auto device = open_cuda_device(0);
  return failure(Errc::unsupported, device ? "built without CUDA" : device.error().text);
}

}  // namespace

Expected<GpuFigures> gpu_figures(const Options&, const ModelConfig&) { return no_gpu(); }

Expected<GpuMemory> make_gpu_memory(const Options&, const ModelConfig&, std::size_t) {
  return no_gpu();
}

Expected<std::unique_ptr<GpuParts>> attach_gpu(const Options&, const ModelConfig&, PoolMemory&,
                                               const PoolFds&, const UniqueFd&) {
  return no_gpu();
}

}  // namespace kvhive
