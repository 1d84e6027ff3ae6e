#pragma once
// Draws what an enemy does next:
//
//   plan      = attack | sequence | repetition | "let go of something" | "let go of everything"
//   sequence  = plan plan [plan [plan]]
//   repetition = 2 to 8 times the same attack
//
// A plan is at most three plans deep. What an attack holds stays held for the next ones, so that a
// sequence is also a combination: for example a process that dies while it owns what it has asked
// for, rung for and half written.

#include <cstddef>
#include <string>
#include <vector>

#include "tests/enemies/attacks.hpp"

namespace kvhive::testing {

/// Which attacks an enemy may make.
struct Arms {
  /// False = the enemy is of the daemon's own user: without attacks that such a process may make.
  bool is_stranger = true;
  std::string words;  ///< only attacks with one of these words in name or line; empty = all

  bool allow(const Attack& attack) const;
};

class Grammar {
 public:
  Grammar(Enemy& enemy, const Arms& arms);

  /// Draws one plan and carries it out; stops in the middle when the storm is over.
  void play_one();
  /// Lets go of everything and disarms what would go off later.
  void make_peace();

 private:
  void play(int depth);
  void attack(std::size_t which);
  std::size_t draw();

  Enemy& enemy_;
  std::vector<std::size_t> allowed_;  ///< places in all_attacks()
};

}  // namespace kvhive::testing
