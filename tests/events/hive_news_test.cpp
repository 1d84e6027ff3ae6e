#include "tools/events/hive_news.hpp"

#include <gmock/gmock.h>

#include "tests/snapshot/sample_snapshot.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Json = HiveNews::Json;

std::vector<std::string> names_of(const std::vector<Json>& news) {
  std::vector<std::string> names;
  for (const Json& event : news) names.push_back(event["event"]);
  return names;
}

/// The one event of this name.
Json only(const std::vector<Json>& news, const std::string& name) {
  Json found;
  for (const Json& event : news) {
    if (event["event"] != name) continue;
    EXPECT_TRUE(found.is_null()) << name << " twice";
    found = event;
  }
  EXPECT_FALSE(found.is_null()) << name;
  return found.is_null() ? Json::object() : found;
}

class HiveNewsTest : public ::testing::Test {
 protected:
  HiveNewsTest() { (void)news_.since_last(now_); }
  std::vector<Json> next() {
    now_.seconds += 2;
    return news_.since_last(now_);
  }

  Snapshot now_ = sample_snapshot();
  HiveNews news_;
};

TEST(HiveNews, TheFirstLookTellsOfAll) {
  HiveNews news;
  const auto told = news.since_last(sample_snapshot());
  EXPECT_THAT(names_of(told), ElementsAre("daemon", "engine_joined", "engine_joined", "domain",
                                          "domain", "client_connected", "client_connected",
                                          "client_connected", "blocks_retired", "blocks"));
  EXPECT_EQ(told[0]["is_new_pool"], true);
  EXPECT_EQ(told[2]["state"], "stopped");
  EXPECT_EQ(told.back()["device"]["held"], 90);
}

TEST_F(HiveNewsTest, NothingIsNoNews) { EXPECT_THAT(next(), IsEmpty()); }

TEST_F(HiveNewsTest, AKilledEngineIsToldWithWhatItTookAlongAndHowLongItWasAway) {
  now_.engines[0].pid = 0;
  now_.engines[0].state = "down";
  now_.engines[0].is_well = false;
  const Json ended = only(next(), "engine_ended");
  EXPECT_EQ(ended["pid"], 4000);
  EXPECT_EQ(ended["held_blocks"], 40);
  EXPECT_EQ(ended["running"], 3);
  now_.engines[0].pid = 4711;
  now_.engines[0].state = "starting";
  EXPECT_THAT(names_of(next()), ElementsAre("engine_state"));
  now_.engines[0].state = "serving";
  now_.engines[0].is_well = true;
  const Json back = only(next(), "engine_serves_again");
  EXPECT_EQ(back["pid"], 4711);
  EXPECT_EQ(back["after_seconds"], 4);
  EXPECT_THAT(next(), IsEmpty());
}

TEST_F(HiveNewsTest, ADeathBetweenTwoLooksIsSeenByThePid) {
  now_.engines[0].pid = 4711;
  const auto told = next();
  EXPECT_THAT(names_of(told), ElementsAre("engine_ended", "engine_serves_again"));
  EXPECT_EQ(told[1]["after_seconds"], 0);
}

TEST_F(HiveNewsTest, AStoppedEngineThatServesAgainHasNotEnded) {
  now_.engines[1].state = "serving";
  now_.engines[1].is_well = true;
  EXPECT_THAT(names_of(next()), ElementsAre("engine_serves_again"));
}

TEST_F(HiveNewsTest, EnginesJoinAndLeave) {
  now_.engines.push_back(sample_engine(2, "serving"));
  now_.engines.back().model = "draft";
  const auto joined = only(next(), "engine_joined");
  EXPECT_EQ(joined["engine"], 2);
  EXPECT_EQ(joined["model"], "draft");
  now_.engines.pop_back();
  EXPECT_EQ(only(next(), "engine_left")["engine"], 2);
}

TEST_F(HiveNewsTest, ClientsAndDomains) {
  now_.clients.erase(now_.clients.begin());
  now_.clients.push_back({5004, 7, "curl", "new", "0", 1});
  now_.domains.push_back({"new", {}, 1, 1});
  const auto told = next();
  EXPECT_EQ(only(told, "client_left")["pid"], 5001);
  EXPECT_EQ(only(told, "client_connected")["program"], "curl");
  EXPECT_EQ(only(told, "domain")["domain"], "new");
}

TEST_F(HiveNewsTest, WhatBlocksHaveDone) {
  set(now_.pool.totals, "published_blocks", 5);
  set(now_.pool.totals, "preemptions_recompute", 2);
  now_.pool.tiers[0].retired += 1;
  const auto told = next();
  EXPECT_EQ(only(told, "blocks")["stored"], 5);
  EXPECT_EQ(only(told, "preempted")["recompute"], 2);
  EXPECT_EQ(only(told, "blocks_retired")["blocks"], 1);
}

TEST_F(HiveNewsTest, AnotherPoolStartsAnew) {
  set(now_.pool.totals, "published_blocks", 50);
  (void)next();
  now_.pool.epoch = "other";
  now_.daemon.keeper = 5;
  set(now_.pool.totals, "published_blocks", 3);
  now_.engines.pop_back();
  now_.clients.clear();
  const auto told = next();
  EXPECT_THAT(names_of(told), ElementsAre("daemon", "engine_left", "engine_left", "client_left",
                                          "client_left", "client_left", "engine_joined", "domain",
                                          "domain", "blocks_retired", "blocks"))
      << "another daemon's are not known";
  EXPECT_EQ(only(told, "daemon")["is_new_pool"], true);
  EXPECT_EQ(only(told, "blocks")["stored"], 3) << "of the new pool";
}

TEST_F(HiveNewsTest, ADaemonThatIsSilentOrHasEndedIsToldOnce) {
  now_.daemon.state = DaemonState::silent;
  now_.daemon.trouble = "stopped";
  const auto told = next();
  EXPECT_THAT(names_of(told), ElementsAre("daemon"));
  EXPECT_EQ(told[0]["state"], "silent");
  EXPECT_EQ(told[0]["trouble"], "stopped");
  EXPECT_EQ(told[0]["is_new_pool"], false);
  EXPECT_THAT(next(), IsEmpty());
  now_.daemon.state = DaemonState::ended;
  EXPECT_EQ(only(next(), "daemon")["state"], "ended");
}

}  // namespace
}  // namespace kvhive::testing
