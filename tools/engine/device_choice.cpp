#include "tools/engine/device_choice.hpp"

#include "device/device.hpp"

namespace kvhive {
namespace {

/// A GPU to compute on, if there is one and we can.
Expected<std::string> find_gpu() {
  auto device = open_cuda_device(0);
  if (!device) return forward_error(device);
  return (*device)->facts().name;
}

}  // namespace

Expected<DeviceChoice> choose_device(const std::string& wanted) {
  if (wanted == "cpu") return DeviceChoice{"cpu", ""};
  auto gpu = find_gpu();
  if (gpu) return DeviceChoice{"cuda", *gpu};
  if (wanted == "cuda") return failure(gpu.error().code, "--device cuda: " + gpu.error().text);
  return DeviceChoice{"cpu", gpu.error().text};
}

}  // namespace kvhive
