#pragma once
// What the kernel knows of a mapping of this process.

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace kvhive::testing {

/// The flags of the mapping that begins at `address`, from /proc/self/smaps: "rd wr sh ... dd".
inline std::string flags_of_mapping(const void* address) {
  std::ostringstream wanted;
  wanted << std::hex << reinterpret_cast<std::uintptr_t>(address) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.rfind(wanted.str(), 0) == 0) is_here = true;
    if (is_here && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return {};
}

}  // namespace kvhive::testing
