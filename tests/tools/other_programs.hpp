#pragma once
// The daemon's programs once more, in a directory of their own: for tests another version of them.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// Copies those that are not there yet.
inline void copy_programs(const std::filesystem::path& directory) {
  for (const char* name : {"kvhived", "kvhive-engine", "kvhive-steward"})
    std::filesystem::copy_file(program(name), directory / name,
                               std::filesystem::copy_options::skip_existing);
}

/// While it lives, tests start the programs of another directory.
class StartedFrom {
 public:
  explicit StartedFrom(const std::filesystem::path& directory) {
    setenv(kName, directory.c_str(), 1);
  }
  ~StartedFrom() {
    if (was_set_)
      setenv(kName, before_.c_str(), 1);
    else
      unsetenv(kName);
  }
  StartedFrom(const StartedFrom&) = delete;
  StartedFrom& operator=(const StartedFrom&) = delete;

 private:
  static constexpr const char* kName = "KVHIVE_PROGRAMS_UNDER_TEST";
  const bool was_set_ = std::getenv(kName) != nullptr;
  const std::string before_ = was_set_ ? std::getenv(kName) : "";
};

}  // namespace kvhive::testing
