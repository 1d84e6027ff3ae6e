#include "tests/enemies/besiegers.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

#include "tests/enemies/enemy.hpp"
#include "tests/support/playing_user.hpp"

namespace kvhive::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// How long an enemy may take to let go of everything. It may be waiting for the daemon's answer.
constexpr std::chrono::seconds kPatience{3};

/// The kernel then runs a process only when no other wants the processor: what is measured is what
/// attacks do to the daemon, and not that eight more processes compute on this machine.
void use_idle_processors_only() {
  const sched_param none{};
  KV_CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0, errno);
}

/// Should memory run out after all, the kernel ends enemies first.
void offer_memory() {
  const UniqueFd file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  (void)!write(file.get(), "1000", 4);
}

}  // namespace

void become_for_good(uid_t user) {
  KV_CHECK(setgroups(0, nullptr) == 0 && setresgid(kGuests, kGuests, kGuests) == 0 &&
               setresuid(user, user, user) == 0,
           errno);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the change of user cleared it
}

Besiegers::Besiegers(Board& board, std::size_t count, std::uint64_t seed, Targets targets,
                     Arms arms)
    : board_(board),
      random_(seed),
      targets_(std::move(targets)),
      arms_(std::move(arms)),
      all_(count) {
  for (std::size_t i = 0; i < count; ++i) start(i);
}

void Besiegers::start(std::size_t number) {
  board_.is_quiet[number] = 0;
  const std::uint64_t seed = random_();
  all_[number] = {};
  all_[number].started = Clock::now();
  all_[number].process = ChildProcess([&] {
    offer_memory();
    use_idle_processors_only();
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (arms_.is_stranger) become_for_good(kFirstEnemy + static_cast<uid_t>(number));
    live_as_enemy(board_, number, seed, targets_, arms_);
  });
}

void Besiegers::call(Phase phase) {
  board_.phase = phase;
  called_ = Clock::now();
}

bool Besiegers::are_quiet() {
  tend();
  bool all_are = true;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].is_stopped) all_[i].continues = Clock::now();
    if (board_.is_quiet[i] != 0) continue;
    all_are = false;
    if (Clock::now() - std::max(called_, all_[i].started) > kPatience)
      all_[i].process.signal(SIGKILL);
  }
  return all_are;
}

void Besiegers::tend() {
  for (std::size_t i = 0; i < all_.size(); ++i) look_at(i);
}

void Besiegers::look_at(std::size_t number) {
  Besieger& one = all_[number];
  int status = 0;
  const pid_t pid = one.process.pid();
  if (waitpid(pid, &status, WNOHANG | WUNTRACED) == pid) {
    if (!WIFSTOPPED(status)) {
      ++deaths_;
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) ++crashes_;
      one.process.forget();
      return start(number);
    }
    ++stops_;
    one.is_stopped = true;
    one.continues = Clock::now() + std::chrono::milliseconds(random_() % 500);
  }
  if (one.is_stopped && Clock::now() >= one.continues) {
    one.is_stopped = false;
    one.process.signal(SIGCONT);
  }
}

void Besiegers::kill_all() { all_.clear(); }

}  // namespace kvhive::testing
