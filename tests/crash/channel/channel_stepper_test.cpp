// SIGKILL at every instruction and around every system call of every operation on a channel.
//
// As for the pool (../stepper_test.cpp): the victim is stepped through the operation once, and each
// state of the shared bytes and of the bells is examined on a copy, as if the victim had just been
// killed. Real kills of copies of the victim, a few instructions further on, must leave one of the
// states that stepping showed.

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <unordered_set>

#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_operations.hpp"
#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/channel/victim.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

class EveryInstructionOfAChannel : public ::testing::TestWithParam<ChannelOperation> {
 protected:
  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "ptrace is forbidden here: NOTHING WAS TESTED";
    GetParam().prepare(stage_);
  }

  Complaints examine(const ChannelImage& left) {
    return GetParam().victim == Side::engine ? after_death_of_engine(stage_, left)
                                             : after_death_of_client(stage_, left);
  }

  void add(std::size_t boundary, const Complaints& complaints) {
    if (complaints.empty() || violations_++ != 0) return;
    first_ =
        "at boundary " + std::to_string(boundary) + ": " + ::testing::PrintToString(complaints);
  }

  void step_through() {
    Victim victim(stage_, GetParam());
    Complaints complaints;
    do {
      if (victim.has_changed()) {
        seen_.insert(victim.image().digest());
        complaints = examine(victim.image());
        ++images_;
      }
      add(boundaries_, complaints);
      if (victim.has_changed() || boundaries_ % kKillStride == 0 || must_kill_everywhere())
        kill_soon_after(victim);
      system_calls_ += victim.child().is_at_system_call();
      ++boundaries_;
    } while (victim.step());
    EXPECT_TRUE(victim.has_done_it()) << "the operation did not do what its name says";
    if (!GetParam().is_repeatable) return;
    for (const std::size_t left : left_by_kills_)
      if (!seen_.contains(left))
        add(boundaries_, {"a kill left a state that stepping did not show"});
  }

  static constexpr std::size_t kKillStride = 512;
  static constexpr std::size_t kMostStepsToKill = 64;

  /// A copy of the victim goes on for some instructions on the copied channel, and is killed.
  void kill_soon_after(const Victim& victim) {
    victim.image().put(stage_.copy());
    TracedChild doomed = victim.child().clone();
    stage_.move_to_copy(doomed);
    for (std::size_t steps = random_() % kMostStepsToKill; steps > 0 && doomed.step(); --steps)
      continue;
    doomed.kill();
    const ChannelImage left(stage_.copy());
    left_by_kills_.push_back(left.digest());
    ++kills_;
    if (seen_.contains(left.digest())) return;  // examined already
    add(boundaries_, examine(left));
  }

  void print() const {
    static bool is_first = true;
    if (std::exchange(is_first, false))
      std::printf("%-52s %10s %12s %6s %10s %10s\n", "operation", "boundaries", "system calls",
                  "images", "real kills", "violations");
    std::printf("%-52s %10zu %12zu %6zu %10zu %10zu\n", GetParam().name.c_str(), boundaries_,
                system_calls_, images_, kills_, violations_);
  }

  ChannelStage stage_;
  std::mt19937 random_{20261122};
  std::unordered_set<std::size_t> seen_;
  std::vector<std::size_t> left_by_kills_;
  std::size_t boundaries_ = 0, system_calls_ = 0, images_ = 0, kills_ = 0, violations_ = 0;
  std::string first_;
};

TEST_P(EveryInstructionOfAChannel, MayBeTheLastBeforeAKill) {
  step_through();
  print();
  EXPECT_GT(boundaries_, 10u);
  EXPECT_EQ(violations_, 0u) << first_;
}

INSTANTIATE_TEST_SUITE_P(Channel, EveryInstructionOfAChannel,
                         ::testing::ValuesIn(channel_operations()),
                         [](const auto& given) { return identifier(given.param.name); });

}  // namespace
}  // namespace kvhive::testing
