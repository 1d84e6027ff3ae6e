// Kills at every named place of the channel's code (../kill_campaign.hpp).

#include <memory>

#include "tests/crash/channel/channel_image.hpp"
#include "tests/crash/channel/channel_operations.hpp"
#include "tests/crash/channel/outcome.hpp"
#include "tests/crash/kill_campaign.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

class ChannelScene final : public KillScene {
 public:
  explicit ChannelScene(const ChannelOperation& operation) : operation_(operation) {
    operation.prepare(stage_);
    start_ = ChannelImage(stage_.medium());
  }
  void set() override { start_.put(stage_.medium()); }
  void run() override { KV_CHECK(operation_.run(stage_), operation_.name); }
  Complaints examine() override {
    const ChannelImage left(stage_.medium());
    return operation_.victim == Side::engine ? after_death_of_engine(stage_, left)
                                             : after_death_of_client(stage_, left);
  }
  std::string name() const override { return operation_.name; }

 private:
  const ChannelOperation& operation_;
  ChannelStage stage_;
  ChannelImage start_;
};

TEST(ChannelKillPoints, AreAllSurvived) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer sees one process only";
  std::vector<std::unique_ptr<KillScene>> scenes;
  for (const ChannelOperation& operation : channel_operations())
    scenes.push_back(std::make_unique<ChannelScene>(operation));
  KillCampaign(std::move(scenes)).run(kUnderSanitizer ? 500 : 2'000);
}

}  // namespace
}  // namespace kvhive::testing
