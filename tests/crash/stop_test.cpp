// A process that is stopped at a random instruction of a random operation (by SIGSTOP, a debugger,
// or a busy machine) stops no other process: their requests finish, however long the stop takes.
// When the stopped process goes on, it acts on what it knew before. It must do no harm then, and
// the blocks it holds must be right.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <random>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/crash/autopsy.hpp"
#include "tests/crash/pool_image.hpp"
#include "tests/crash/settings.hpp"
#include "tests/crash/traced_child.hpp"
#include "tests/pool/pool_worker.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

/// Whether the child ends by itself within two minutes. It needs milliseconds; more is a hang.
bool ends(ChildProcess& child) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0));
  pollfd waiting{pidfd, POLLIN, 0};
  const bool has_ended = poll(&waiting, 1, 120'000) == 1;
  close(pidfd);
  return has_ended && ended_well(child.wait());
}

/// An operation with its prepared pool, which can be restored.
struct Rehearsal {
  explicit Rehearsal(const Operation& rehearsed) : operation(rehearsed) {
    operation.prepare(stage);
    start.take(stage.memory());
    TracedChild child([&] { operation.run(stage); });
    while (child.step()) ++steps;
  }
  const Operation& operation;
  Stage stage{operation.with};
  PoolImage start;
  std::size_t steps = 0;  ///< of the whole operation, undisturbed
};

class StoppedAnywhere : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kAttempts = 300;
  static constexpr std::uint32_t kWorkers = 2;
  using Fleet = std::array<WorkerProgress, kWorkers>;

  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden here";
    for (const Operation& operation : operations())
      rehearsals_.push_back(std::make_unique<Rehearsal>(operation));
  }

  /// Other processes use the pool. Each of their requests must end, served or refused.
  void work_meanwhile(const PoolMemory& memory) {
    SharedValue<Fleet> fleet;
    std::array<ChildProcess, kWorkers> workers;
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      const ProcessSlot slot{Stage::kNewcomer.value + i};
      const auto seed = std::uint32_t(random_());
      workers[i] = ChildProcess([&, i, slot, seed] {
        sign_in(memory, slot, i);
        PoolWorker worker(memory, slot, seed, {.sequences = 2, .blocks = 2}, (*fleet)[i]);
        worker.attempt(kAttempts);
        worker.release_everything();
      });
    }
    for (ChildProcess& worker : workers) ASSERT_TRUE(ends(worker)) << "waits for a stopped process";
    for (const WorkerProgress& progress : *fleet) {
      EXPECT_EQ(progress.wrong.load(), 0u);
      served_ += progress.requests.load();
    }
  }

  std::mt19937 random_{chosen_seed()};
  std::vector<std::unique_ptr<Rehearsal>> rehearsals_;
  std::uint64_t served_ = 0;
};

TEST_F(StoppedAnywhere, AProcessStopsNoOtherAndGoesOnUnharmed) {
  const int stops = chaos_minutes() >= 5 ? 1000 : kUnderSanitizer ? 60 : 80;
  for (int i = 0; i < stops; ++i) {
    Rehearsal& rehearsal = *rehearsals_[std::size_t(i) % rehearsals_.size()];
    Stage& stage = rehearsal.stage;
    rehearsal.start.put(stage.memory());
    const std::size_t steps = random_() % rehearsal.steps;
    const std::string where = rehearsal.operation.name + ", step " + std::to_string(steps);

    // The operation's result is not checked: others may have taken the blocks that it had seen.
    TracedChild victim([&] { rehearsal.operation.run(stage); },
                       [&] { _exit(stage.victim_concludes() ? 0 : 1); });
    // The operation may have fewer steps this time, because its heap differs.
    for (std::size_t step = 0; step < steps && victim.step(); ++step) continue;
    victim.leave_stopped();
    ASSERT_NO_FATAL_FAILURE(work_meanwhile(stage.memory())) << where;
    EXPECT_THAT(fsck(stage.memory()).violations, IsEmpty()) << where;

    victim.go_on();
    EXPECT_TRUE(ended_well(victim.wait())) << where << ": the victim's blocks are wrong";
    const ReapReport left = reap(stage.memory(), Stage::kVictim);
    EXPECT_EQ(left.freed + left.released, 0u) << where;
    EXPECT_THAT(examine_at_rest(stage.memory(), holder_bit(Stage::kSurvivor)), IsEmpty()) << where;
    if (HasFailure()) return;
  }
  std::printf("stopped %d times in %zu operations; the others were served %llu times meanwhile\n",
              stops, rehearsals_.size(), static_cast<unsigned long long>(served_));
  EXPECT_GT(served_, std::uint64_t(stops) * 100);
}

}  // namespace
}  // namespace kvhive::testing
