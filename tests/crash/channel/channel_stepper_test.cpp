// Every instruction and every system call of every operation on a channel: the victim is killed
// there, or stands there while the other side acts.
//
// Kills, as for the pool (../stepper_test.cpp): the victim is stepped through the operation once,
// and each state of the shared bytes and of the bells is examined on a copy, as if the victim had
// just been killed. Real kills of copies of the victim, some instructions further on, must leave
// states that stepping showed.
//
// Meetings: every deed of the other side needs a victim that has seen nothing of the other deeds.
// So the victim is stepped once more, and at each chosen boundary it is copied, with what it
// shares, once for each deed. Chosen are the boundaries before each load and store of a slot's
// fields, before and after each system call, and before and after any other change; at a sample of
// the others one deed is done.

#include <gmock/gmock.h>

#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "tests/crash/channel/meeting.hpp"
#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/channel/victim.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

class EveryInstructionOfAChannel : public ::testing::TestWithParam<ChannelOperation> {
 protected:
  /// Between samples of the boundaries not chosen.
  static constexpr std::size_t kStride = kUnderSanitizer ? 8192 : 512;
  /// Under a sanitizer, which makes a process's copy dear, one deed is done at each so many of the
  /// chosen boundaries.
  static constexpr std::size_t kSanitizersShare = 16;
  static constexpr std::size_t kMostStepsToKill = 64;

  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "NOT RUN: ptrace is forbidden here";
    GetParam().prepare(stage_);
    start_ = ChannelImage(stage_.medium());
  }

  static bool is_engine_the_victim() { return GetParam().victim == Side::engine; }

  Complaints examine(const ChannelImage& left) {
    return is_engine_the_victim() ? after_death_of_engine(stage_, left)
                                  : after_death_of_client(stage_, left);
  }

  void add(std::size_t boundary, const Complaints& complaints) {
    if (complaints.empty() || violations_++ != 0) return;
    first_ =
        "at boundary " + std::to_string(boundary) + ": " + ::testing::PrintToString(complaints);
  }

  void kill_everywhere() {
    Victim victim(stage_, GetParam());
    Complaints complaints;
    do {
      if (victim.has_changed()) {
        seen_.insert(victim.image().digest());
        complaints = examine(victim.image());
        if (GetParam().invariant && !GetParam().invariant(stage_))
          complaints.push_back("what the operation promises at every instruction does not hold");
        ++images_;
      }
      add(boundaries_, complaints);
      if (victim.has_changed() || boundaries_ % kStride == 0 || must_kill_everywhere())
        kill_soon_after(victim);
      system_calls_ += victim.is_at_system_call();
      choose(victim);
      ++boundaries_;
    } while (victim.step());
    EXPECT_TRUE(victim.has_done_it()) << "the operation did not do what its name says";
    if (!GetParam().is_repeatable) return;
    for (const std::size_t left : left_by_kills_)
      if (!seen_.contains(left))
        add(boundaries_, {"a kill left a state that stepping did not show"});
  }

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
    if (!seen_.contains(left.digest())) add(boundaries_, examine(left));
  }

  /// Chooses this boundary if the peer shall act here.
  void choose(const Victim& victim) {
    const bool was_call = std::exchange(is_after_call_, victim.is_at_system_call());
    const bool was_chosen = !chosen_.empty() && chosen_.back();
    const bool has_changed_unforeseen = victim.has_changed() && !was_chosen;
    if (has_changed_unforeseen && !chosen_.empty()) chosen_.back() = true;
    chosen_.push_back(victim.is_at_slot() || victim.is_at_system_call() || was_call ||
                      has_changed_unforeseen);
  }

  void meet_everywhere() {
    start_.put(stage_.medium());
    const Side peer = is_engine_the_victim() ? Side::client : Side::engine;
    const std::vector<PeersDeed>& deeds = deeds_of(peer);
    const auto meet_for = [&](const Victim& victim, std::size_t boundary, const PeersDeed& deed) {
      ++meetings_;
      add(boundary, meet(stage_, victim, peer, deed));
    };
    Victim victim(stage_, GetParam());
    std::size_t boundary = 0, chosen = 0;
    do {
      const bool is_chosen = must_kill_everywhere() || is_chosen_at(boundary);
      if (is_chosen && !kUnderSanitizer) {
        for (const PeersDeed& deed : deeds) meet_for(victim, boundary, deed);
      } else if (is_chosen ? ++chosen % kSanitizersShare == 0 : boundary % kStride == 0) {
        meet_for(victim, boundary, deeds[meetings_ % deeds.size()]);
      }
      ++boundary;
    } while (victim.step());
  }

  bool is_chosen_at(std::size_t boundary) const {
    return boundary < chosen_.size() && chosen_[boundary];
  }

  void print() const {
    static bool is_first = true;
    if (std::exchange(is_first, false))
      std::printf("%-52s %10s %12s %6s %10s %8s %10s\n", "operation", "boundaries", "system calls",
                  "images", "real kills", "meetings", "violations");
    std::printf("%-52s %10zu %12zu %6zu %10zu %8zu %10zu\n", GetParam().name.c_str(), boundaries_,
                system_calls_, images_, kills_, meetings_, violations_);
  }

  ChannelStage stage_;
  ChannelImage start_;
  std::mt19937 random_{20261122};
  std::unordered_set<std::size_t> seen_;
  std::vector<std::size_t> left_by_kills_;
  std::vector<bool> chosen_;  ///< boundaries at which the peer acts
  bool is_after_call_ = false;
  std::size_t boundaries_ = 0, system_calls_ = 0, images_ = 0;
  std::size_t kills_ = 0, meetings_ = 0, violations_ = 0;
  std::string first_;
};

TEST_P(EveryInstructionOfAChannel, MayBeTheLastAndMayMeetAPeer) {
  kill_everywhere();
  meet_everywhere();
  print();
  EXPECT_GT(boundaries_, 10u);
  EXPECT_EQ(violations_, 0u) << first_;
}

INSTANTIATE_TEST_SUITE_P(Channel, EveryInstructionOfAChannel,
                         ::testing::ValuesIn(channel_operations()),
                         [](const auto& given) { return identifier(given.param.name); });

}  // namespace
}  // namespace kvhive::testing
