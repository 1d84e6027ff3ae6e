#pragma once
// The honest client: sends short requests at a steady pace, measures them, and compares every token
// with what the same request gave before any enemy was there.

#include <string>

#include "tests/enemies/board.hpp"

namespace kvhive::testing {

/// Runs until it is killed. `board.requests` gets a sample of each request; its first ones, without
/// a round, are those that later ones are compared with.
[[noreturn]] void live_as_honest_client(Board& board, const std::string& socket_path);

/// How many requests the honest client has ended when it knows what to expect.
extern const std::size_t kRequestsToLearn;

}  // namespace kvhive::testing
