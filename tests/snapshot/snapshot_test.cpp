#include "tools/snapshot/snapshot.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

using Json = nlohmann::json;

Snapshot snapshot_of(const PoolMemory& memory, const Json& told) {
  return take_snapshot(memory, told, {}, 1);
}

TEST(TopSnapshot, JoinsWhatKvhivedSaysAndWhatThePoolHas) {
  const PoolMemory memory = private_pool(small_geometry(8));
  occupy(memory, ProcessSlot{2}, 77);
  memory.control().processes[2].counters["running"].store(3);
  const Json told = {
      {"engines",
       {{{"engine", 0}, {"pid", getpid()}, {"state", "serving"}, {"slot", 2}, {"restarts", 4}},
        {{"engine", 1}, {"pid", 0}, {"state", "down"}, {"restarts", 9}}}},
      {"domains", {{"names", {"default", "team"}}}},
      {"clients",
       {{{"pid", getpid()},
         {"uid", 5},
         {"domain", "team"},
         {"channel_bytes", 100},
         {"engines", {0, 1}}},
        {{"pid", 0},
         {"uid", 5},
         {"domain", "team"},
         {"channel_bytes", 11},
         {"engines", Json::array()}}}}};
  const Snapshot snapshot = snapshot_of(memory, told);
  ASSERT_EQ(snapshot.engines.size(), 2u);
  EXPECT_EQ(snapshot.engines[0].counted["running"], 3u);
  EXPECT_TRUE(snapshot.engines[0].is_well);
  EXPECT_EQ(snapshot.engines[0].restarts, 4u);
  EXPECT_FALSE(snapshot.engines[1].is_well);
  EXPECT_FALSE(snapshot.engines[1].slot.has_value());
  ASSERT_EQ(snapshot.clients.size(), 2u);
  EXPECT_EQ(snapshot.clients[0].engines, "0,1");
  EXPECT_FALSE(snapshot.clients[0].program.empty());
  EXPECT_EQ(snapshot.clients[1].program, "") << "not visible from here";
  ASSERT_EQ(snapshot.domains.size(), 1u) << "the domain without blocks and clients is left out";
  EXPECT_EQ(snapshot.domains[0].name, "team");
  EXPECT_EQ(snapshot.domains[0].clients, 2u);
  EXPECT_EQ(snapshot.domains[0].channel_bytes, 111u);
}

TEST(TopSnapshot, WithoutKvhivedThePoolNamesTheEngines) {
  const PoolMemory memory = private_pool(small_geometry(8));
  occupy(memory, ProcessSlot{3}, static_cast<std::uint32_t>(getpid()));
  memory.control().processes[3].index.store(6);
  const Snapshot snapshot = snapshot_of(memory, Json::object());
  ASSERT_EQ(snapshot.engines.size(), 1u);
  EXPECT_EQ(snapshot.engines[0].number, 6u);
  EXPECT_EQ(snapshot.engines[0].state, "unknown");
  EXPECT_FALSE(snapshot.engines[0].restarts.has_value());
}

/// kvhived may be stopped itself, so the kernel is asked.
TEST(TopSnapshot, StoppedAndEndedEnginesAreMarked) {
  const PoolMemory memory = private_pool(small_geometry(8));
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  waitpid(child, nullptr, WUNTRACED);
  const Json told = {
      {"engines", {{{"engine", 0}, {"pid", child}, {"state", "serving"}, {"slot", 0}}}}};
  EXPECT_EQ(snapshot_of(memory, told).engines.at(0).state, "stopped");
  EXPECT_FALSE(snapshot_of(memory, told).engines.at(0).is_well);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(snapshot_of(memory, told).engines.at(0).state, "ended");
}

TEST(TopSnapshot, AStatusOfAnotherFormIsNoCrash) {
  const PoolMemory memory = private_pool(small_geometry(8));
  for (const Json& told :
       {Json(), Json::object(), Json{{"engines", 5}, {"clients", "x"}, {"domains", {{"names", 1}}}},
        Json{{"clients", {{{"engines", 7}}}}, {"domains", {{"names", {1, nullptr}}}}}})
    EXPECT_EQ(snapshot_of(memory, told).pool.tiers[0].blocks, 7u) << told;
}

}  // namespace
}  // namespace kvhive::testing
