#pragma once
// The keeper's tables before anything has happened, for tests of its parts in this process.

#include "tools/keeper/tables.hpp"

namespace kvhive::testing {

inline Tables no_tables() {
  return {.front = 0,
          .options = {},
          .domains = Domains::resolve({}, PeerIdentity::of_this_process()).value(),
          .pool = {},
          .peers = {},
          .steward = {},
          .engines = {},
          .channels = Channels(),
          .repairs = {},
          .orders = {},
          .memory = {},
          .changed_peers = {},
          .due_welcomes = {}};
}

}  // namespace kvhive::testing
