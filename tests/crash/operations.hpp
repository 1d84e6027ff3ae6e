#pragma once
// Everything a process does to the pool, one by one, each from a stage set for it.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/crash/stage.hpp"

namespace kvhive::testing {

struct Operation {
  std::string name;
  /// Sets the stage.
  std::function<void(Stage&)> prepare;
  /// What the victim does. True if it did what the name says.
  std::function<bool(Stage&)> run;
  /// How many idle device blocks it may take, oldest first.
  std::size_t evicts = 0;
  /// It may push hints out of the index: blocks stay, but are not found.
  bool may_lose_hints = false;
  /// It writes something else each time (a process id, the time).
  bool is_repeatable = true;
  /// What the survivor does while the victim is at the kill point named so; nothing if empty.
  std::string interrupted_at = {};
  void (*meanwhile)(Stage&) = nullptr;
  /// Like `evicts`, for the host tier.
  std::size_t evicts_on_host = 0;
};

const std::vector<Operation>& operations();

/// Operations another process gets in the way of, at one certain instruction.
const std::vector<Operation>& races();

/// For the tests' output.
inline void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

}  // namespace kvhive::testing
