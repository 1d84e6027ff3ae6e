#pragma once
// Kills at every named place of the code that scenes run (base/kill_point.hpp), each time a scene
// reaches it, and then at places drawn at random. A place where no process was killed fails the
// test: no scene reaches it, so its survival is not proven.

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/kill_point.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {

/// An operation that is run again and again, with a kill at some place in it.
class KillScene {
 public:
  virtual ~KillScene() = default;
  /// Restores the state before the operation.
  virtual void set() = 0;
  /// Runs the operation. Called in the victim.
  virtual void run() = 0;
  /// What is wrong with what the victim has left.
  virtual std::vector<std::string> examine() = 0;
  virtual std::string name() const = 0;
};

class KillCampaign {
 public:
  explicit KillCampaign(std::vector<std::unique_ptr<KillScene>> scenes)
      : scenes_(std::move(scenes)) {}

  /// Kills once at each place, and goes on until `wanted` processes were killed. Prints the counts.
  void run(std::size_t wanted) {
    ASSERT_LE(KillPoint::all().size(), kMostPoints);
    std::mt19937 random(chosen_seed());
    explore();
    ASSERT_FALSE(places_.empty());
    for (const Place& place : places_) {
      kill_at(place);
      if (::testing::Test::HasFatalFailure()) return;
    }
    while (kills_ < wanted) {
      kill_at(places_[random() % places_.size()]);
      if (::testing::Test::HasFailure()) break;
    }
    report();
  }

 private:
  static constexpr std::size_t kMostPoints = 256;
  using Hits = std::array<std::uint32_t, kMostPoints>;
  struct Place {
    std::size_t scene;
    std::size_t point;
    std::uint32_t hit;
  };

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
    KillScene& scene = *scenes_[place.scene];
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
    const std::vector<std::string> complaints = scene.examine();
    if (!complaints.empty()) ++violations_;
    EXPECT_THAT(complaints, ::testing::IsEmpty()) << where;
  }

  void report() const {
    std::printf("%zu kill points in %zu scenes, passed %zu times; %zu kills, %zu violations\n",
                KillPoint::all().size(), scenes_.size(), places_.size(), kills_, violations_);
    for (std::size_t point = 0; point < KillPoint::all().size(); ++point) {
      std::printf("  %-32s %6zu\n", KillPoint::all()[point]->label(), kills_at_[point]);
      EXPECT_GT(kills_at_[point], 0u)
          << "no process was killed at " << KillPoint::all()[point]->label();
    }
  }

  std::vector<std::unique_ptr<KillScene>> scenes_;
  std::vector<Place> places_;
  std::array<std::size_t, kMostPoints> kills_at_{};
  std::size_t kills_ = 0;
  std::size_t violations_ = 0;
};

}  // namespace kvhive::testing
