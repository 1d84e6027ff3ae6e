#pragma once
// Decides which device the option --device means on this machine.

#include <memory>
#include <string>

#include "config/options.hpp"
#include "config/pool_geometry.hpp"
#include "device/device.hpp"

namespace kvhive {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  std::string reason;  ///< the GPU's name, or why there is none; empty if the CPU was asked for
  std::unique_ptr<Device> device;  ///< null on the CPU
};

/// Chooses the device that `options.device` means. Errors: a GPU is asked for and there is none;
/// the text says why.
[[nodiscard]] Expected<DeviceChoice> choose_device(const Options& options);

}  // namespace kvhive
