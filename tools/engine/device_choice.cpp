#include "tools/engine/device_choice.hpp"

#include "device/device.hpp"

namespace kvhive {
namespace {

/// A GPU to compute on, if there is one and we can.
Expected<void> find_gpu() {
  auto device = open_cuda_device(0);
  if (!device) return forward_error(device);
  return failure(Errc::unsupported, "there is a GPU (" + (*device)->facts().name +
                                        "), but kvhive's engines do not compute on it yet; use "
                                        "--device cpu");
}

}  // namespace

Expected<DeviceChoice> choose_device(const std::string& wanted) {
  if (wanted == "cpu") return DeviceChoice{"cpu", ""};
  if (auto found = find_gpu(); !found) {
    if (wanted == "cuda")
      return failure(found.error().code, "--device cuda: " + found.error().text);
    return DeviceChoice{"cpu", found.error().text};
  }
  return DeviceChoice{"cuda", wanted == "cuda" ? "" : "a GPU was found"};
}

}  // namespace kvhive
