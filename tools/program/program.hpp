#pragma once
// What every main() of ours does with a failure: one line on standard error, exit code 1.

#include <cstdio>
#include <exception>

#include "base/expected.hpp"

namespace kvhive {

/// Runs a program to its exit code.
inline int run_program(const char* name, Expected<int> (*run)(int, char**), int argc, char** argv) {
  try {
    const auto exit_code = run(argc, argv);
    if (exit_code) return *exit_code;
    std::fprintf(stderr, "%s: %s\n", name, exit_code.error().text.c_str());
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "%s: %s\n", name, exception.what());
  }
  return 1;
}

}  // namespace kvhive
