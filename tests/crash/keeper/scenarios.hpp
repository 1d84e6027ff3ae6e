#pragma once
// The state changes of the keeper. Each is caused by an actor: a process of its own, which ends
// with status 0 if it saw what it should see.

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/crash/keeper/scene.hpp"

namespace kvhive::testing {

/// The process beside the keeper that is killed or stopped.
enum class Peer : std::uint8_t { actor, engine, guest, steward };
std::string to_string(Peer peer);

/// What the keeper does at the end of a scenario; hands_over: it leaves, and another follows.
enum class Ending : std::uint8_t { serves, hands_over, ends };

struct Scenario {
  std::string name;
  std::vector<std::string> flags = {};
  /// Run by the test before the keeper is traced.
  std::function<void(Scene&)> prepare = [](Scene&) {};
  /// Run by the test once the keeper is traced, before the actor starts. Must not wait for the
  /// keeper.
  std::function<void(Scene&)> begin = [](Scene&) {};
  /// The actor.
  std::function<void(const Scene&)> act;
  std::vector<Peer> peers = {};
  /// The scenario kills an engine or the steward. Each run of it then needs a new daemon.
  bool costs_a_child = false;
  bool kills_the_steward = false;  ///< then there may be nobody who removes the socket
  Ending ending = Ending::serves;
  bool needs_users = false;  ///< root, who can play other users
  /// The actor may get an error instead of what it asked for, if a peer dies.
  bool actor_may_fail = false;

  friend void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }
};

std::vector<Scenario> scenarios();

}  // namespace kvhive::testing
