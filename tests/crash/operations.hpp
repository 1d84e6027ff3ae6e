#pragma once
// All operations of a process on the pool. Each has a function that prepares the pool for it.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/crash/stage.hpp"

namespace kvhive::testing {

struct Operation {
  std::string name;
  /// Prepares the pool.
  std::function<void(Stage&)> prepare;
  /// The operation, run by the victim. True if it did what the name says.
  std::function<bool(Stage&)> run;
  /// How many idle device blocks it may take, oldest first.
  std::size_t evicts = 0;
  /// The operation may push hints out of the index: blocks stay, but may not be found.
  bool may_lose_hints = false;
  /// False if the operation writes different bytes each time (a process id, the time).
  bool is_repeatable = true;
  /// The survivor calls `meanwhile` while the victim is at this kill point; never if empty.
  std::string interrupted_at = {};
  void (*meanwhile)(Stage&) = nullptr;
  /// Like `evicts`, for the host tier.
  std::size_t evicts_on_host = 0;
  Stage::With with = Stage::With::nothing;
  /// The domain whose idle device blocks it may take.
  DomainId evicts_in{0};
};

const std::vector<Operation>& operations();

/// Operations during which another process changes the pool at one given instruction.
const std::vector<Operation>& races();

/// For the tests' output.
inline void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

}  // namespace kvhive::testing
