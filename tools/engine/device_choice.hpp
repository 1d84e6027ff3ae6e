#pragma once
// What --device comes to on this machine.

#include <memory>
#include <string>

#include "config/options.hpp"
#include "device/device.hpp"

namespace kvhive {

struct DeviceChoice {
  std::string name;    ///< cpu or cuda
  std::string reason;  ///< the GPU's name, or why there is none; empty if the CPU was asked for
  std::unique_ptr<Device> device;  ///< where it is cuda
};

/// By `options.device`: cpu, cuda (an error says what is missing) or auto (then the CPU, saying
/// so).
Expected<DeviceChoice> choose_device(const Options& options);

}  // namespace kvhive
