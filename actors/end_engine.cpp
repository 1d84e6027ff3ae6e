#include "actors/end_engine.hpp"

#include <unistd.h>

#include "base/exit_codes.hpp"
#include "base/log.hpp"

namespace kvhive {

void end_engine(const char* who, const Error& error) {
  spdlog::critical("{}: {}; this engine publishes nothing more and ends", who, error.text);
  _exit(error.code == Errc::device_lost ? kExitDeviceLost : 1);
}

}  // namespace kvhive
