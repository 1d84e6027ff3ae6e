// On recorded traffic, the pool makes every decision as vLLM's block manager does.

#include <fstream>

#include "tests/tools/daemon.hpp"
#include "tools/replay/replay.hpp"
#include "tools/replay/sha256.hpp"
#include "tools/replay/simulated_policy.hpp"

namespace kvhive::testing {
namespace {

namespace fs = std::filesystem;

Json read_json(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

void expect_decisions(const fs::path& trace, std::uint32_t block_tokens, const Json& expected,
                      std::uint32_t expand_to = 0, std::size_t limit = 0) {
  const auto requests = read_trace(trace, limit);
  ASSERT_TRUE(requests.has_value()) << requests.error().text;
  ReplayOptions options;
  options.block_tokens = block_tokens;
  options.blocks = expected["capacity"];
  options.mode = *ReplayMode::parse(expected["mode"]);
  options.expand_to = expand_to;
  const auto result = replay(*requests, options, [](std::size_t) {});
  ASSERT_TRUE(result.has_value()) << result.error().text;
  SCOPED_TRACE(expected["mode"].get<std::string>() + ":" + expected["capacity"].dump());
  EXPECT_EQ(result->hit_blocks, expected["hit_blocks"]);
  EXPECT_EQ(result->evictions, expected["evictions"]);
  EXPECT_EQ(result->rejected, expected["rejected"]);
  EXPECT_EQ(result->hits_sha256, expected["hits_sha256"]);
  EXPECT_EQ(result->block_ids_sha256, expected["block_ids_sha256"]);
  if (expected.contains("free_queue_sha256")) {
    EXPECT_EQ(result->free_queue_sha256, expected["free_queue_sha256"]);
  }
}

TEST(Replay, DecidesAsVllmOnInventedTraffic) {
  const fs::path traces = KVHIVE_TRACES_DIR;
  for (const Json& expected : read_json(traces / "expect.json"))
    expect_decisions(traces / "small.jsonl", 64, expected);
}

TEST(Replay, SeveralProcessesShareOnePool) {
  const auto requests = read_trace(fs::path(KVHIVE_TRACES_DIR) / "small.jsonl", 0);
  ASSERT_TRUE(requests.has_value()) << requests.error().text;
  ReplayOptions options;
  options.block_tokens = 64;
  options.blocks = 4'000;
  const auto alone = replay(*requests, options, [](std::size_t) {});
  options.processes = 3;
  const auto together = replay(*requests, options, [](std::size_t) {});
  ASSERT_TRUE(alone.has_value() && together.has_value());
  EXPECT_EQ(together->requests, alone->requests);
  EXPECT_EQ(together->full_blocks, alone->full_blocks);
  EXPECT_GT(together->hit_blocks, 0u);
  EXPECT_EQ(together->rejected, 0u);
}

TEST(Replay, DecidesAsVllmOnProductionTraffic) {
  const fs::path traces = fs::path(KVHIVE_SHARED_DIR) / "traces";
  if (!fs::exists(traces))
    GTEST_SKIP() << "the recorded traces are not there; invented traffic is tested all the same";
  const auto expect_all = [&](const char* name, const char* trace, std::uint32_t block_tokens,
                              std::uint32_t expand_to, std::size_t limit) {
    const Json expectations = read_json(traces / "expect" / name);
    ASSERT_FALSE(expectations["runs"].empty());
    for (const Json& expected : expectations["runs"])
      expect_decisions(traces / trace, block_tokens, expected, expand_to, limit);
  };
  const char* conversation = "mooncake_conversation_trace.jsonl.gz";
  expect_all("mooncake_conversation.new.json", conversation, 512, 0, 0);
  expect_all("cc64_c16.new.json", "cc64_c16.jsonl.gz", 64, 0, 0);
  expect_all("mooncake_conversation_bs16_first2000.new.json", conversation, 512, 16, 2000);
}

/// Hit by hit.
void expect_the_pool_finds_what_a_simulation_does(const fs::path& trace, std::uint32_t block_tokens,
                                                  std::initializer_list<std::uint32_t> capacities) {
  const auto requests = read_trace(trace, 0);
  ASSERT_TRUE(requests.has_value()) << requests.error().text;
  for (const std::uint32_t blocks : capacities)
    for (const auto& [policy, simulated] :
         {std::pair{EvictionPolicy::lru, SimulatedPolicy::lru},
          std::pair{EvictionPolicy::second_chance, SimulatedPolicy::second_chance}}) {
      ReplayOptions options;
      options.block_tokens = block_tokens;
      options.blocks = blocks;
      options.policy = policy;
      const auto result = replay(*requests, options, [](std::size_t) {});
      ASSERT_TRUE(result.has_value()) << result.error().text;
      Sha256 hits;
      hits.add(simulate(*requests, block_tokens, blocks, simulated));
      EXPECT_EQ(result->hits_sha256, hits.finish()) << blocks << " blocks, " << to_string(policy);
    }
}

TEST(ReplayPolicies, ThePoolFindsWhatASimulationDoes) {
  expect_the_pool_finds_what_a_simulation_does(fs::path(KVHIVE_TRACES_DIR) / "small.jsonl", 64,
                                               {80, 200, 400, 1'000, 4'000});
}

TEST(ReplayPolicies, ThePoolFindsWhatASimulationDoesOnProductionTraffic) {
  const fs::path traces = fs::path(KVHIVE_SHARED_DIR) / "traces";
  if (!fs::exists(traces)) GTEST_SKIP() << "the recorded traces are not there";
  expect_the_pool_finds_what_a_simulation_does(traces / "mooncake_conversation_trace.jsonl.gz", 512,
                                               {1'000, 10'000, 50'000});
}

/// Of a block that two sessions use, of one that a session leaves behind, and of one that is used
/// often and long ago.
TEST(SimulatedPolicies, DifferAsTheirNamesSay) {
  const auto request = [](std::uint64_t id, const std::string& session) {
    return TraceRequest{20, 0, {id, id + 1000}, session};  // a full block and a part of one
  };
  // Room for two full blocks beside the one that is being filled.
  const auto hits = [&](std::vector<TraceRequest> trace, SimulatedPolicy policy) {
    return simulate(trace, 16, 3, policy).back();
  };
  const std::vector<TraceRequest> often = {request(1, "a"), request(1, "b"), request(1, "a"),
                                           request(2, "a"), request(3, "b"), request(1, "b")};
  EXPECT_EQ(hits(often, SimulatedPolicy::lru), 0u);
  EXPECT_EQ(hits(often, SimulatedPolicy::second_chance), 1u);
  EXPECT_EQ(hits(often, SimulatedPolicy::lfu), 1u);
  EXPECT_EQ(hits(often, SimulatedPolicy::optimum), 1u);
  const std::vector<TraceRequest> left = {request(1, "a"), request(2, "b"), request(3, "c"),
                                          request(1, "a")};
  EXPECT_EQ(hits(left, SimulatedPolicy::lru), 0u);
  EXPECT_EQ(hits(left, SimulatedPolicy::departed_first), 1u) << "b had left";
}

TEST(Replay, BadTracesAreRefusedWithTheirLine) {
  const CommandResult missing = run("kvhive", {"replay", "/nonexistent.jsonl", "--blocks", "10"});
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_NE(missing.err.find("/nonexistent.jsonl"), std::string::npos);
  const fs::path path =
      fs::temp_directory_path() / ("kvhive-bad-trace-" + std::to_string(getpid()));
  std::ofstream(path) << R"({"input_length": 64, "hash_ids": [1]})"
                      << "\n{\"input_length\": \n";
  const CommandResult bad = run("kvhive", {"replay", path.string(), "--blocks", "10"});
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_NE(bad.err.find("line 2"), std::string::npos) << bad.err;
  fs::remove(path);
}

TEST(Replay, TheCommandPrintsTheDigests) {
  const Json result =
      run("kvhive", {"replay", std::string(KVHIVE_TRACES_DIR) + "/small.jsonl", "--block-tokens",
                     "64", "--blocks", "80,400", "--format", "json"})
          .json();
  const Json expected = read_json(fs::path(KVHIVE_TRACES_DIR) / "expect.json");
  ASSERT_EQ(result.size(), 2u);
  for (int i : {0, 1}) EXPECT_EQ(result[i]["free_queue_sha256"], expected[i]["free_queue_sha256"]);
}

}  // namespace
}  // namespace kvhive::testing
