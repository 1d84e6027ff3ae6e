#include "tools/keeper/succession/orphan_ends.hpp"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace kvhive {

/// Of a process that has ended and is not collected yet: the last field of /proc/PID/stat.
static std::optional<int> status_of_zombie(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string state, last;
  fields >> state;
  while (fields >> last) continue;
  if (state != "Z" || last.empty()) return std::nullopt;
  return std::stoi(last);
}

std::optional<int> OrphanEnds::status_of(pid_t pid) const {
  // In this order: what is not a zombie any more was written.
  if (const auto status = status_of_zombie(pid)) return status;
  const std::uint32_t count = count_;
  for (std::uint32_t back = 1; back <= kKept; ++back) {  // the last that had the number
    const std::uint64_t end = ends_[(count - back) % kKept];
    if (end >> 32 == std::uint64_t(pid)) return static_cast<int>(static_cast<std::uint32_t>(end));
  }
  return std::nullopt;
}

}  // namespace kvhive
