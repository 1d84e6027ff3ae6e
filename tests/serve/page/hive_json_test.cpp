#include "tools/serve/page/hive_json.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/snapshot/sample_snapshot.hpp"

namespace kvhive::testing {
namespace {

using Json = nlohmann::json;

HiveMoment sample_moment() {
  HiveMoment moment;
  moment.sight = HiveSight::reading;
  moment.snapshot = sample_snapshot();
  moment.rates = rates_between(earlier_snapshot(), *moment.snapshot);
  moment.maps = {map_of("HH..", "I", 2), map_of("HH..", "I", 2, MapBy::owner)};
  return moment;
}

Json told(const HiveMoment& moment) {
  return Json::parse(hive_json(moment, {{"demo", "half"}, "1.2", true}));
}

TEST(HiveJson, TellsEnginesTrafficAndDomains) {
  const Json hive = told(sample_moment());
  EXPECT_EQ(hive["sight"], "reading");
  EXPECT_EQ(hive["model"], "demo");
  EXPECT_EQ(hive["models"], Json::array({"demo", "half"}));
  EXPECT_EQ(hive["wants_api_key"], true);
  EXPECT_EQ(hive["traffic"]["generated_tokens_per_second"], 60);
  EXPECT_EQ(hive["engines"][0]["generated_tokens_per_second"], 50);
  EXPECT_EQ(hive["engines"][1]["state"], "stopped");
  EXPECT_EQ(hive["engines"][1]["is_well"], false);
  EXPECT_EQ(hive["domains"][1]["name"], "team");
  EXPECT_EQ(hive["domains"][1]["min_blocks"], 150);
  EXPECT_EQ(hive["pool"]["tiers"].size(), 2u);
}

/// Who may scrape /metrics may read it.
TEST(HiveJson, NamesNoProcessAndNoUser) {
  const std::string text = hive_json(sample_moment(), {{"demo"}, "", false});
  for (const char* secret : {"pid", "uid", "program", "4001", "3999", "5001", "python3"})
    EXPECT_EQ(text.find(secret), std::string::npos) << secret;
}

TEST(HiveJson, EachViewHasItsLegendAndItsCells) {
  const Json map = told(sample_moment())["map"];
  EXPECT_EQ(map["blocks_per_cell"], 2);
  EXPECT_EQ(map["tiers"][1]["first_block"], 5);
  ASSERT_EQ(map["views"].size(), 2u);
  EXPECT_EQ(map["views"][0]["by"], "state");
  EXPECT_EQ(map["views"][0]["categories"][2]["name"], "held by one");
  EXPECT_EQ(map["views"][0]["categories"][2]["colour"], "#0072b2");
  EXPECT_EQ(map["views"][0]["categories"][2]["blocks"], 2);
  EXPECT_EQ(map["views"][0]["cells"], Json({"2 0", "4"}));
}

TEST(HiveJson, EqualNeighboursAreOneWordAndMixedCellsAreCounted) {
  EXPECT_EQ(cells_text(map_of("HHHHHH..HI", "", 2).tiers[0]), "2*3 0 2:1,4:1");
  EXPECT_EQ(cells_text(map_of("HIHI", "", 2).tiers[0]), "2:1,4:1 2:1,4:1");
}

TEST(HiveJson, WithoutAPoolItSaysWhy) {
  HiveMoment moment;
  moment.sight = HiveSight::refused;
  moment.trouble = "the daemon does not let this user in";
  const Json hive = told(moment);
  EXPECT_EQ(hive["sight"], "refused");
  EXPECT_EQ(hive["trouble"], "the daemon does not let this user in");
  EXPECT_FALSE(hive.contains("engines"));
}

TEST(HiveJson, WithoutARateItIsNotZero) {
  HiveMoment moment = sample_moment();
  moment.rates = {};
  EXPECT_TRUE(told(moment)["traffic"]["generated_tokens_per_second"].is_null());
}

/// Names of domains come from administrators, those of models from files.
TEST(HiveJson, BytesThatAreNoTextAreReplaced) {
  HiveMoment moment = sample_moment();
  moment.snapshot->domains[0].name = "a\xff";
  EXPECT_EQ(told(moment)["domains"][0]["name"], "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace kvhive::testing
