// Kills at every named place of the pool's code (base/kill_point.hpp), each time an operation
// reaches it, and then at places drawn at random. A place where no process was killed fails the
// test: no operation reaches it, so its survival is not proven.

#include <gmock/gmock.h>

#include <array>
#include <map>
#include <memory>
#include <random>

#include "base/kill_point.hpp"
#include "tests/crash/autopsy.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/pool_image.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/shared_value.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

constexpr std::size_t kMostPoints = 256;
using Hits = std::array<std::uint32_t, kMostPoints>;

/// An operation that is run again and again, with a kill at some place in it.
class Scene {
 public:
  virtual ~Scene() = default;
  /// Restores the state before the operation.
  virtual void set() = 0;
  /// Runs the operation. Called in the victim.
  virtual void run() = 0;
  virtual Complaints examine() = 0;
  virtual std::string name() const = 0;
};

class OperationScene final : public Scene {
 public:
  explicit OperationScene(const Operation& operation) : operation_(operation) {
    operation.prepare(stage_);
    start_.take(stage_.memory());
    autopsy_ = std::make_unique<Autopsy>(stage_, operation);
  }

  void set() override { start_.put(stage_.memory()); }
  void run() override {
    interrupted_ = this;
    for (KillPoint* point : KillPoint::all())
      if (point->label() == operation_.interrupted_at) point->interrupt(&interrupt);
    KV_CHECK(operation_.run(stage_), operation_.name);
  }
  Complaints examine() override { return autopsy_->examine(stage_.memory()); }
  std::string name() const override { return operation_.name; }

 private:
  /// Acts as the survivor, in the victim's process. The pool cannot tell the difference.
  static void interrupt() {
    KillPoint::is_suspended = true;
    interrupted_->operation_.meanwhile(interrupted_->stage_);
    KillPoint::is_suspended = false;
  }

  static inline OperationScene* interrupted_ = nullptr;
  const Operation& operation_;
  Stage stage_;
  PoolImage start_;
  std::unique_ptr<Autopsy> autopsy_;
};

/// The steward dies while it writes an empty pool; the next one starts over.
class FormatScene final : public Scene {
 public:
  FormatScene() : fds_(create_pool_objects(kGeometry).value()) {}

  void set() override { fds_ = create_pool_objects(kGeometry).value(); }
  void run() override { KV_CHECK(PoolMemory::format(fds_, kGeometry).has_value()); }
  Complaints examine() override {
    if (const auto formatted = PoolMemory::format(fds_, kGeometry); !formatted)
      return {formatted.error().text};
    const auto memory = PoolMemory::attach(fds_, Access::read_write);
    return memory ? examine_at_rest(*memory, 0) : Complaints{memory.error().text};
  }
  std::string name() const override { return "format"; }

 private:
  const PoolGeometry kGeometry = small_geometry(16, 8);
  PoolFds fds_;
};

/// Each race without a kill: the operation does what its name says, and its process dies at the
/// end.
class Race : public ::testing::TestWithParam<Operation> {};

TEST_P(Race, EndsAsItsNameSays) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  OperationScene scene(GetParam());
  scene.set();
  ChildProcess child([&] {
    for (KillPoint* point : KillPoint::all()) point->forget_hits();
    scene.run();
  });
  EXPECT_TRUE(ended_well(child.wait())) << "the operation did not do what its name says";
  EXPECT_THAT(scene.examine(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Pool, Race, ::testing::ValuesIn(races()),
                         [](const auto& race) { return identifier(race.param.name); });

class KillPoints : public ::testing::Test {
 protected:
  struct Place {
    std::size_t scene;
    std::size_t point;
    std::uint32_t hit;
  };

  void SetUp() override {
    if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
    ASSERT_LE(KillPoint::all().size(), kMostPoints);
    for (const auto* list : {&operations(), &races()})
      for (const Operation& operation : *list)
        scenes_.push_back(std::make_unique<OperationScene>(operation));
    scenes_.push_back(std::make_unique<FormatScene>());
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
  std::map<std::size_t, std::size_t> kills_at_;
  std::size_t kills_ = 0;
  std::size_t violations_ = 0;
};

TEST_F(KillPoints, AreAllSurvived) {
  const std::size_t wanted = kUnderSanitizer ? 3'000 : 10'000;
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
