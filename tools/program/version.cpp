#include "tools/program/version.hpp"

#include "ipc/control_messages.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

std::string release() { return KVHIVE_VERSION; }

std::string version_text(const std::string& program) {
  return program + " " + release() + " (control protocol " + std::to_string(kProtocolVersion) +
         ", pool format " + std::to_string(kFormatVersion) + ")";
}

}  // namespace kvhive
