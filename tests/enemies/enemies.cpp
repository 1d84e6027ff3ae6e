// Hostile processes of several users draw from a grammar of all attacks, beside an honest client
// and an operator. Nobody else may notice (README.md). Run by `make enemies`: it takes minutes, and
// compares times, so it is not a CTest test.

#include <cstdlib>

#include "tests/crash/settings.hpp"
#include "tests/enemies/campaign.hpp"
#include "tests/support/playing_user.hpp"

namespace kvhive::testing {
namespace {

double number_from(const char* variable, double usual) {
  const char* wanted = std::getenv(variable);
  return wanted != nullptr && *wanted != '\0' ? std::strtod(wanted, nullptr) : usual;
}

int besiege() {
  Settings settings;
  settings.minutes = number_from("KVHIVE_ENEMIES_MINUTES", 1);
  const double enemies = number_from("KVHIVE_ENEMIES_USERS", 8);
  if (!(settings.minutes > 0) || !(enemies >= 1 && enemies <= double{kMostEnemies})) {
    std::printf("KVHIVE_ENEMIES_MINUTES must be more than 0 and KVHIVE_ENEMIES_USERS 1 to %zu\n",
                kMostEnemies);
    return 2;
  }
  settings.enemies = static_cast<std::size_t>(enemies);
  settings.seed = chosen_seed();
  if (const char* words = std::getenv("KVHIVE_ENEMIES_ATTACKS")) settings.words = words;
  settings.is_root = can_play_users();
  if (!settings.is_root)
    std::printf(
        "ONLY HALF IS SHOWN HERE: only root can play several users. All enemies are of the "
        "daemon's own user, and skip the attacks that it is allowed to make; run it as root\n");
  std::printf(
      "%zu enemies of %s, %.3g minutes. They run under SCHED_IDLE, and compute in calm rounds, so "
      "that the rounds differ in what is done to the daemon, not in who has the processor.\n",
      settings.enemies, settings.is_root ? "as many users" : "one user", settings.minutes);
  return Campaign(settings).run() ? 0 : 1;
}

}  // namespace
}  // namespace kvhive::testing

int main() { return kvhive::testing::besiege(); }
