#include "tools/engine/device_choice.hpp"

namespace kvhive {

Expected<DeviceChoice> choose_device(const Options& options) {
  if (options.device == RequestedDevice::cpu) return DeviceChoice{DeviceKind::cpu, "", nullptr};
  auto gpu = open_cuda_device(0, options.gpu_memory_sharing);
  if (gpu) {
    const std::string name = (*gpu)->facts().name;
    return DeviceChoice{DeviceKind::cuda, name, std::move(*gpu)};
  }
  if (options.device == RequestedDevice::cuda)
    return failure(gpu.error().code, "--device cuda: " + gpu.error().text);
  return DeviceChoice{DeviceKind::cpu, gpu.error().text, nullptr};
}

}  // namespace kvhive
