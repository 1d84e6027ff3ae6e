// `kvhive pool reset` while engines run.

#include <thread>

#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

class ResetDaemon : public ::testing::Test {
 protected:
  std::uint32_t cached_tokens(std::uint32_t engine = kAnyEngine) const {
    return daemon_.connect(engine).generate(request_of(passage(0, 400), 4))->cached_tokens;
  }
  CommandResult reset() const { return daemon_.cli({"pool", "reset", "--format", "json"}); }

  Daemon daemon_;
};

TEST_F(ResetDaemon, ForgetsWhatIsCachedForAllEngines) {
  EXPECT_EQ(cached_tokens(0), 0u);
  EXPECT_GT(cached_tokens(1), 0u);
  const CommandResult done = reset();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.json()["resets"], 1);
  EXPECT_GT(done.json()["forgotten_blocks"].get<int>(), 3);
  EXPECT_TRUE(daemon_.fsck_is_clean());
  EXPECT_NE(
      daemon_.cli({"pool", "why", passage(0, 400)}).out.find("forgotten by kvhive pool reset"),
      std::string::npos);
  EXPECT_EQ(cached_tokens(0), 0u);
  EXPECT_GT(cached_tokens(1), 0u) << "what came after it is found";
  EXPECT_NE(daemon_.cli({"pool", "reset"}).out.find("are found no more"), std::string::npos);
  EXPECT_EQ(cached_tokens(), 0u);
}

TEST_F(ResetDaemon, IsSeenWhereverCachedBlocksAreCounted) {
  (void)cached_tokens();
  ASSERT_TRUE(eventually([&] { return daemon_.nothing_is_held(); }));
  const Json before = daemon_.stat();
  EXPECT_EQ(before["resets"], 0);
  EXPECT_EQ(before["tiers"]["device"]["forgotten"], 0);
  const std::size_t forgotten = reset().json()["forgotten_blocks"];
  const Json after = daemon_.stat();
  EXPECT_EQ(after["resets"], 1);
  EXPECT_EQ(after["tiers"]["device"]["forgotten"], forgotten);
  EXPECT_EQ(after["tiers"]["device"]["idle"], before["tiers"]["device"]["idle"]);
  EXPECT_NE(daemon_.cli({"pool", "stat"}).out.find("resets of the prefix cache: 1;"),
            std::string::npos);
  const std::string watched = daemon_.cli({"watch", "--count", "1"}).out;
  EXPECT_NE(watched.find("\"cache_reset\",\"resets\":1"), std::string::npos) << watched;
  EXPECT_NE(daemon_.cli({"top"}).out.find("0.0% cached"), std::string::npos);
  (void)cached_tokens();
  EXPECT_EQ(daemon_.stat()["tiers"]["device"]["forgotten"], forgotten) << "what came after it";
}

TEST_F(ResetDaemon, ChangesNoAnswerThatIsUnderWay) {
  const auto requests = overlapping_requests(12, 60, 20);
  const Tokens undisturbed = tokens_one_by_one(daemon_, requests);
  std::atomic<bool> is_done{false};
  std::thread operator_([&] {
    while (!is_done) EXPECT_EQ(reset().exit_code, 0);
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tokens_at_once(daemon_, requests), undisturbed);
  is_done = true;
  operator_.join();
  EXPECT_TRUE(daemon_.fsck_is_clean());
}

TEST_F(ResetDaemon, AStewardKilledMeanwhileLeavesAResetToRunAgain) {
  (void)cached_tokens();
  const auto pid_of_steward = [&] { return daemon_.status()["steward"]["pid"].get<pid_t>(); };
  const pid_t victim = pid_of_steward();
  signal_process(victim, SIGSTOP);
  CommandResult first;
  std::thread asker([&] { first = reset(); });
  EXPECT_TRUE(eventually([&] { return daemon_.procs()["keeper"]["repairs"] == 1; }));
  signal_process(victim, SIGKILL);
  asker.join();
  EXPECT_NE(first.err.find("middle of the reset"), std::string::npos) << first.err;
  EXPECT_TRUE(eventually([&] { return reset().exit_code == 0; }));
  EXPECT_EQ(cached_tokens(), 0u);
}

}  // namespace
}  // namespace kvhive::testing
