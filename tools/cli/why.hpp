#pragma once
// kvhive pool why: why a prompt's prefix is not found, block by block.

#include "tools/cli/command.hpp"

namespace kvhive {

/// Adds the subcommand to `kvhive pool`.
void add_pool_why(CLI::App& pool, int& exit_code);

}  // namespace kvhive
