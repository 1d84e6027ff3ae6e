#pragma once
// The operator: looks after the daemon with kvhive's commands, in turn and at a steady pace.

#include "tests/tools/daemon.hpp"
#include "tests/enemies/board.hpp"

namespace kvhive::testing {

/// Runs until it is killed. `board.commands` gets a sample of each command.
[[noreturn]] void live_as_operator(Board& board, const Daemon& daemon);

}  // namespace kvhive::testing
