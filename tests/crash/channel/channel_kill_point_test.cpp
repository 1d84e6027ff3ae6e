// Kills at every named place of the channel's code (base/kill_point.hpp), each time an operation
// reaches it, and then at places drawn at random. A place where no process was killed fails the
// test.

#include <gmock/gmock.h>

#include <array>
#include <memory>
#include <random>

#include "base/kill_point.hpp"
#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_operations.hpp"
#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

constexpr std::size_t kMostPoints = 128;
using Hits = std::array<std::uint32_t, kMostPoints>;

/// An operation that is run again and again, with a kill at some place in it.
class Scene {
 public:
  explicit Scene(const ChannelOperation& operation) : operation_(operation) {
    operation.prepare(stage_);
    start_ = ChannelImage(stage_.medium());
  }
  void set() { start_.put(stage_.medium()); }
  /// Called in the victim.
  void run() { KV_CHECK(operation_.run(stage_), operation_.name); }
  Complaints examine() {
    const ChannelImage left(stage_.medium());
    return operation_.victim == Side::engine ? after_death_of_engine(stage_, left)
                                             : after_death_of_client(stage_, left);
  }
  const std::string& name() const { return operation_.name; }

 private:
  const ChannelOperation& operation_;
  ChannelStage stage_;
  ChannelImage start_;
};

class ChannelKillPoints : public ::testing::Test {
 protected:
  struct Place {
    std::size_t scene;
    std::size_t point;
    std::uint32_t hit;
  };

  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    ASSERT_LE(KillPoint::all().size(), kMostPoints);
    for (const ChannelOperation& operation : channel_operations())
      scenes_.push_back(std::make_unique<Scene>(operation));
  }

  /// Runs each scene once and records how often it reaches each point.
  void explore() {
    for (std::size_t scene = 0; scene < scenes_.size(); ++scene) {
      SharedValue<Hits> hits;
      scenes_[scene]->set();
      ChildProcess child([&] {
        for (KillPoint* point : KillPoint::all()) point->forget_hits();
        scenes_[scene]->run();
        for (std::size_t i = 0; i < KillPoint::all().size(); ++i)
          (*hits)[i] = KillPoint::all()[i]->hits();
      });
      ASSERT_TRUE(ended_well(child.wait())) << scenes_[scene]->name() << " does not do its work";
      for (std::size_t point = 0; point < KillPoint::all().size(); ++point)
        for (std::uint32_t hit = 1; hit <= (*hits)[point]; ++hit)
          places_.push_back({scene, point, hit});
    }
  }

  void kill_at(const Place& place) {
    Scene& scene = *scenes_[place.scene];
    KillPoint& point = *KillPoint::all()[place.point];
    scene.set();
    ChildProcess child([&] {
      for (KillPoint* other : KillPoint::all()) other->forget_hits();
      point.arm(place.hit);
      scene.run();
    });
    const int status = child.wait();
    const std::string where =
        scene.name() + ", " + point.label() + ", time " + std::to_string(place.hit);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << where << " was not reached";
    ++kills_;
    ++kills_at_[place.point];
    const Complaints complaints = scene.examine();
    if (!complaints.empty()) ++violations_;
    EXPECT_THAT(complaints, IsEmpty()) << where;
  }

  std::vector<std::unique_ptr<Scene>> scenes_;
  std::vector<Place> places_;
  std::array<std::size_t, kMostPoints> kills_at_{};
  std::size_t kills_ = 0;
  std::size_t violations_ = 0;
};

TEST_F(ChannelKillPoints, AreAllSurvived) {
  const std::size_t wanted = kUnderSanitizer ? 500 : 2'000;
  std::mt19937 random(chosen_seed());
  explore();
  ASSERT_FALSE(places_.empty());
  for (const Place& place : places_) {
    kill_at(place);
    if (HasFatalFailure()) return;
  }
  while (kills_ < wanted) {
    kill_at(places_[random() % places_.size()]);
    if (HasFailure()) break;
  }

  std::printf("%zu kill points in %zu scenes, passed %zu times; %zu kills, %zu violations\n",
              KillPoint::all().size(), scenes_.size(), places_.size(), kills_, violations_);
  for (std::size_t point = 0; point < KillPoint::all().size(); ++point) {
    std::printf("  %-32s %6zu\n", KillPoint::all()[point]->label(), kills_at_[point]);
    EXPECT_GT(kills_at_[point], 0u)
        << "no process was killed at " << KillPoint::all()[point]->label();
  }
}

}  // namespace
}  // namespace kvhive::testing
