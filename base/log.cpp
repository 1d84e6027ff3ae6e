#include "base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace kvhive {
namespace {

/// Colours only on a terminal that has them, and not if NO_COLOR is set (https://no-color.org).
spdlog::color_mode color_mode() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_unwanted = no_color != nullptr && *no_color != '\0';
  return is_unwanted ? spdlog::color_mode::never : spdlog::color_mode::automatic;
}

}  // namespace

void start_log(const std::string& name, const std::string& level) {
  auto logger = spdlog::stderr_color_mt(name, color_mode());
  logger->set_pattern("%H:%M:%S.%e %^%-5l%$ [%n] %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace kvhive
