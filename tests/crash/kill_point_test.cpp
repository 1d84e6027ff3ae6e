// Kills at every named place of the pool's code (kill_campaign.hpp).

#include <gmock/gmock.h>

#include <memory>

#include "tests/crash/autopsy.hpp"
#include "tests/crash/identifier.hpp"
#include "tests/crash/kill_campaign.hpp"
#include "tests/crash/pool_image.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

class OperationScene final : public KillScene {
 public:
  explicit OperationScene(const Operation& operation)
      : operation_(operation), stage_(operation.with) {
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
class FormatScene final : public KillScene {
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

TEST(KillPoints, AreAllSurvived) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  std::vector<std::unique_ptr<KillScene>> scenes;
  for (const auto* list : {&operations(), &races()})
    for (const Operation& operation : *list)
      scenes.push_back(std::make_unique<OperationScene>(operation));
  scenes.push_back(std::make_unique<FormatScene>());
  KillCampaign(std::move(scenes)).run(kUnderSanitizer ? 3'000 : 10'000);
}

}  // namespace
}  // namespace kvhive::testing
