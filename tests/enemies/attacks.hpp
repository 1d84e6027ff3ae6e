#pragma once
// All attacks. Each is one function; the grammar (grammar.hpp) combines them. `line` is the line of
// the list of defects that it once came from (S1 to S12).

#include <span>
#include <vector>

#include "tests/enemies/enemy.hpp"

namespace kvhive::testing {

struct Attack {
  const char* name;
  const char* line;
  void (*run)(Enemy&);
  /// True = the daemon defends itself only against other users with it. A process of the daemon's
  /// own user can kill the daemon anyway.
  bool needs_stranger = false;
};

std::span<const Attack> connection_attacks();
std::span<const Attack> descriptor_attacks();
std::span<const Attack> prompt_attacks();
std::span<const Attack> channel_attacks();
std::span<const Attack> process_attacks();

/// All of the above. At most kMostAttacks.
const std::vector<Attack>& all_attacks();

}  // namespace kvhive::testing
