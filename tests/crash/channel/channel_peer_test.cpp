// A side of a channel stands at some instruction of an operation while the other side does
// something of its own; then it goes on, and so do both. The client must get every token once and
// in order, and nobody may sleep over anything.
//
// A process can stand at many instructions, and every deed of its peer needs a victim that has seen
// nothing of the other deeds. So at each chosen boundary the stepped victim is copied, with what it
// shares, once for each deed; the copies go on at full speed. Chosen are the boundaries before and
// after each change of shared memory and each system call, and a sample of the others.

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/channel/victim.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

class PeerOfAChannel : public ::testing::TestWithParam<ChannelOperation> {
 protected:
  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    if (!TracedChild::is_allowed()) GTEST_SKIP() << "ptrace is forbidden here: NOTHING WAS TESTED";
    GetParam().prepare(stage_);
  }

  Side peer() const { return GetParam().victim == Side::engine ? Side::client : Side::engine; }

  /// The boundaries before and after each change and each system call.
  std::vector<bool> choose() {
    const ChannelImage start(stage_.medium());
    std::vector<bool> chosen{true};
    Victim victim(stage_, GetParam());
    for (bool goes_on = true; goes_on;) {
      const bool is_call = victim.child().is_at_system_call();
      goes_on = victim.step();
      const bool is_of_interest = is_call || victim.has_changed();
      if (is_of_interest) chosen.back() = true;
      chosen.push_back(is_of_interest);
    }
    start.put(stage_.medium());
    return chosen;
  }

  /// The victim's copy and its peer, which does its deed, and then both go on.
  void meet(const Victim& victim, const PeersDeed& deed) {
    ++cases_;
    victim.image().put(stage_.copy());
    stage_.status() = {};
    TracedChild copy = victim.child().clone();
    stage_.move_to_copy(copy);
    TracedChild other(
        [&] {
          stage_.move_to_copy();
          deed.run(stage_);
        },
        [&] { take_turns(stage_, peer()); });
    StoryStatus& status = stage_.status();
    if (!other.run() || !copy.run()) {
      status.complain("a side has ended by itself");
    } else {
      TracedChild& client = peer() == Side::client ? other : copy;
      TracedChild& engine = peer() == Side::client ? copy : other;
      conduct(
          status, [&] { return client.run(); }, [&] { return engine.run(); });
    }
    if (status.complaints == 0 || violations_++ != 0) return;
    first_ = "at boundary " + std::to_string(boundary_) + ", " + deed.name + ": " +
             ::testing::PrintToString(complaints_of(status));
  }

  void meet_everywhere(const std::vector<bool>& chosen) {
    const std::vector<PeersDeed>& deeds = deeds_of(peer());
    Victim victim(stage_, GetParam());
    for (bool goes_on = true; goes_on; goes_on = victim.step(), ++boundary_) {
      if (must_kill_everywhere() || (boundary_ < chosen.size() && chosen[boundary_])) {
        for (const PeersDeed& deed : deeds) meet(victim, deed);
      } else if (boundary_ % kStride == 0) {
        meet(victim, deeds[boundary_ / kStride % deeds.size()]);
      }
    }
  }

  static constexpr std::size_t kStride = 256;

  ChannelStage stage_;
  std::size_t boundary_ = 0, cases_ = 0, violations_ = 0;
  std::string first_;
};

TEST_P(PeerOfAChannel, MayActAtAnyInstruction) {
  meet_everywhere(choose());
  std::printf("%-52s %6zu boundaries, %5zu meetings, %zu violations\n", GetParam().name.c_str(),
              boundary_, cases_, violations_);
  EXPECT_EQ(violations_, 0u) << first_;
}

INSTANTIATE_TEST_SUITE_P(Channel, PeerOfAChannel, ::testing::ValuesIn(channel_operations()),
                         [](const auto& given) { return identifier(given.param.name); });

}  // namespace
}  // namespace kvhive::testing
