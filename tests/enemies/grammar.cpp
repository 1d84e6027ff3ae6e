#include "tests/enemies/grammar.hpp"

#include <sys/time.h>
#include <sys/wait.h>

#include <sstream>
#include <string_view>

namespace kvhive::testing {
namespace {

constexpr int kDeepest = 3;

/// Ends the zombies of children that were left behind.
void collect_children() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

bool Arms::allow(const Attack& attack) const {
  if (attack.needs_stranger && !is_stranger) return false;
  std::istringstream wanted(words);
  bool is_wanted = words.empty();
  for (std::string word; wanted >> word;)
    is_wanted = is_wanted || word == attack.line ||
                std::string_view(attack.name).find(word) != std::string_view::npos;
  return is_wanted;
}

Grammar::Grammar(Enemy& enemy, const Arms& arms) : enemy_(enemy) {
  for (std::size_t i = 0; i < all_attacks().size(); ++i)
    if (arms.allow(all_attacks()[i])) allowed_.push_back(i);
}

void Grammar::play_one() {
  play(0);
  collect_children();
}

void Grammar::make_peace() {
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  enemy_.drop_all();
  collect_children();
}

void Grammar::play(int depth) {
  if (enemy_.is_calm()) return;
  const std::uint64_t kind = enemy_.below(16);
  if (kind == 0) return enemy_.drop_all();
  if (kind <= 2) return enemy_.drop_some();
  if (depth < kDeepest && kind <= 5) {
    for (std::uint64_t i = enemy_.below(3) + 2; i > 0; --i) play(depth + 1);
    return;
  }
  const std::size_t which = draw();
  const std::uint64_t times = kind <= 7 ? enemy_.below(7) + 2 : 1;
  for (std::uint64_t i = 0; i < times && !enemy_.is_calm(); ++i) attack(which);
}

std::size_t Grammar::draw() { return allowed_[enemy_.below(allowed_.size())]; }

void Grammar::attack(std::size_t which) {
  ++enemy_.board().attacks[which];
  all_attacks()[which].run(enemy_);
}

}  // namespace kvhive::testing
