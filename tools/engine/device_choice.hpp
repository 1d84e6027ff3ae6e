#pragma once
// What --device comes to on this machine.

#include <string>

#include "config/expected.hpp"

namespace kvhive {

struct DeviceChoice {
  std::string name;    ///< cpu or cuda
  std::string reason;  ///< the GPU's name, or why there is none; empty if the CPU was asked for
};

/// \param wanted  cpu, cuda (an error says what is missing) or auto (then the CPU, saying so)
Expected<DeviceChoice> choose_device(const std::string& wanted);

}  // namespace kvhive
