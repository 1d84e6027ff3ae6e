#pragma once
// All enemies of a run: starts them as users of their own, replaces those that died, continues
// those that stopped themselves, and calls them into a storm or out of it.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/enemies/board.hpp"
#include "tests/enemies/grammar.hpp"
#include "tests/support/child_process.hpp"

namespace kvhive::testing {

/// The users of enemies are this one and those that follow it.
inline constexpr uid_t kFirstEnemy = 60'101;
inline constexpr uid_t kHonestUser = 60'100;

/// Makes this process one of that user, for good. For forked children.
void become_for_good(uid_t user);

class Besiegers {
 public:
  /// \param arms  not strangers = all enemies are of this process's own user
  Besiegers(Board& board, std::size_t count, std::uint64_t seed, Targets targets, Arms arms);

  /// Calls them into this phase.
  void call(Phase phase);
  /// True = all of them hold nothing of a daemon any more. Enemies that do not hear are killed.
  bool are_quiet();
  /// Replaces those that died and, after a while, continues those that have stopped.
  void tend();
  void kill_all();

  std::uint64_t deaths() const { return deaths_; }
  std::uint64_t stops() const { return stops_; }
  /// Deaths that nobody meant: an attack that crashes its own process attacks nobody.
  std::uint64_t crashes() const { return crashes_; }

 private:
  struct Besieger {
    ChildProcess process;
    bool is_stopped = false;
    std::chrono::steady_clock::time_point started{}, continues{};
  };
  void start(std::size_t number);
  void look_at(std::size_t number);

  Board& board_;
  std::mt19937_64 random_;
  Targets targets_;
  Arms arms_;
  std::vector<Besieger> all_;
  std::chrono::steady_clock::time_point called_{};
  std::uint64_t deaths_ = 0, stops_ = 0, crashes_ = 0;
};

}  // namespace kvhive::testing
