// Whole daemons that measure how long blocks live (--kv-cache-metrics-sample).

#include "tests/tools/engine_death.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

std::vector<std::string> flags(const std::string& sample) {
  return {"--engines",       "2",   "--num-gpu-blocks-override", "48",
          "--max-model-len", "512", "--kv-cache-metrics-sample", sample};
}

std::uint64_t count(const Daemon& daemon, const std::string& histogram) {
  const Json stat = daemon.stat();
  std::uint64_t count = 0;
  for (const Json& bucket : stat["histograms"][histogram]["buckets"])
    count += bucket.get<std::uint64_t>();
  return count;
}

TEST(LivesOfBlocks, AreToldWhenTheirBlocksAreAllocatedAgain) {
  const Daemon daemon(flags("1"));
  Client first = daemon.connect(0), second = daemon.connect(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((i == 1 ? first : second).generate(request_number(0)));
  EXPECT_EQ(count(daemon, "kv_block_reuse_gap_seconds"), 0u) << "its blocks are still there";
  for (std::size_t i = 1; i <= 5; ++i) EXPECT_TRUE(first.generate(request_number(i)));

  const Json stat = daemon.stat();
  EXPECT_EQ(stat["life_stride"], 1);
  // All but the first of each block have ended, and each block but the null block has had one.
  const auto ended = count(daemon, "kv_block_lifetime_seconds");
  EXPECT_EQ(ended, stat["allocated_blocks"].get<std::uint64_t>() - 47);
  EXPECT_EQ(count(daemon, "kv_block_idle_before_evict_seconds"), ended);
  const std::size_t prompt_blocks = first.generate(request_number(0))->prompt_tokens / 16;
  EXPECT_EQ(count(daemon, "kv_block_reuse_gap_seconds"), prompt_blocks) << "it was found twice";

  const std::string table = daemon.cli({"pool", "stat"}).out;
  EXPECT_NE(table.find("lives of one block in 1 measured"), std::string::npos) << table;
  EXPECT_NE(table.find("between two uses"), std::string::npos) << table;
}

TEST(LivesOfBlocks, GoOnWhereEnginesAndKeeperDie) {
  const Daemon daemon(flags("1"));
  {
    Client client = daemon.connect(0);
    EXPECT_TRUE(client.generate(request_number(0)));
  }
  daemon.kill_keeper();
  ASSERT_TRUE(kill_and_await_next(daemon, 0));
  Client client = daemon.connect(0);
  for (std::size_t i = 1; i <= 5; ++i) EXPECT_TRUE(client.generate(request_number(i)));
  EXPECT_EQ(count(daemon, "kv_block_lifetime_seconds"),
            daemon.stat()["allocated_blocks"].get<std::uint64_t>() - 47);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(LivesOfBlocks, AreNotMeasuredUnlessAskedFor) {
  const Daemon daemon(flags("0"));
  Client client = daemon.connect(0);
  for (std::size_t i = 0; i <= 5; ++i) EXPECT_TRUE(client.generate(request_number(i)));
  EXPECT_EQ(daemon.stat()["life_stride"], 0);
  EXPECT_EQ(count(daemon, "kv_block_lifetime_seconds"), 0u);
  EXPECT_EQ(daemon.cli({"pool", "stat"}).out.find("between two uses"), std::string::npos);
}

}  // namespace
}  // namespace kvhive::testing
