#pragma once
// Logging to standard error, one line an event, with the process' name. The only door to spdlog.

#include <spdlog/spdlog.h>

#include <string>

namespace kvhive {

/// Call once in main: `name` is printed in every line ("engine 1"), `level` is one of
/// Options::log_level's.
void start_log(const std::string& name, const std::string& level);

}  // namespace kvhive
