// Attacks by what a process does to itself: it stops, dies, leaves a child with its connections,
// and takes locks where others may need them.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/enemies/attacks.hpp"

namespace kvhive::testing {
namespace {

// A stopped process is continued by the run (besiegers.cpp), a dead one replaced.

void stop_now(Enemy&) { raise(SIGSTOP); }

void die_now(Enemy&) { raise(SIGKILL); }

void stop_in_handler(int) { kill(getpid(), SIGSTOP); }
void die_in_handler(int) { kill(getpid(), SIGKILL); }

void arm_timer(Enemy& enemy, void (*handler)(int)) {
  signal(SIGALRM, handler);
  itimerval when{};
  when.it_value.tv_usec = static_cast<suseconds_t>(1 + enemy.below(20'000));
  setitimer(ITIMER_REAL, &when, nullptr);
}

/// In the middle of what the grammar draws next.
void stop_soon(Enemy& enemy) { arm_timer(enemy, stop_in_handler); }
void die_soon(Enemy& enemy) { arm_timer(enemy, die_in_handler); }

/// A child keeps the connections for a while; the parent may die meanwhile.
void leave_a_child_behind(Enemy& enemy) {
  if (fork() != 0) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(enemy.below(200)));
  _exit(0);
}

void lock_the_directory(Enemy& enemy) {
  const auto directory = std::filesystem::path(enemy.socket_path()).parent_path();
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return;
  flock(fd.get(), LOCK_EX | LOCK_NB);
  enemy.hold(std::move(fd));
}

void meddle_with_the_socket_file(Enemy& enemy) {
  (void)unlink(enemy.socket_path().c_str());
  (void)rename(enemy.socket_path().c_str(), (enemy.socket_path() + ".gone").c_str());
}

constexpr Attack kAttacks[] = {
    {"stop", "S10", stop_now},
    {"stop in the middle of something", "S10", stop_soon},
    {"die", "S11", die_now},
    {"die in the middle of something", "S11", die_soon},
    {"leave connections to a child", "S11", leave_a_child_behind},
    {"lock the socket's directory", "S10", lock_the_directory},
    {"remove the socket's file", "S10", meddle_with_the_socket_file, true},
};

}  // namespace

std::span<const Attack> process_attacks() { return kAttacks; }

}  // namespace kvhive::testing
