#pragma once
// The daemon's programs once more, in a directory of their own: for tests another version of them.

#include <filesystem>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// Copies those that are not there yet.
inline void copy_programs(const std::filesystem::path& directory) {
  for (const char* name : {"kvhived", "kvhive-engine", "kvhive-steward"})
    std::filesystem::copy_file(program(name), directory / name,
                               std::filesystem::copy_options::skip_existing);
}

}  // namespace kvhive::testing
