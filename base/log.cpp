#include "base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace kvhive {

void start_log(const std::string& name, const std::string& level) {
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_pattern("%H:%M:%S.%e %^%-5l%$ [%n] %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace kvhive
