#include "tools/serve/page/history.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/snapshot/sample_snapshot.hpp"

namespace kvhive::testing {
namespace {

using Json = nlohmann::json;

ProcessReport engine(std::uint32_t number, std::uint32_t pid, std::uint64_t running = 0) {
  ProcessReport report;
  report.index = report.slot = number;
  report.pid = pid;
  set(report.counted, "running", running);
  return report;
}

HiveReading reading_at(double seconds, std::vector<ProcessReport> engines) {
  HiveReading reading;
  reading.seconds = seconds;
  reading.unix_time = 1'000 + static_cast<std::int64_t>(seconds);
  reading.epoch = "first";
  reading.statistics.processes = std::move(engines);
  reading.tiers[0] = {100, 40, 10, 20, 5, 30, 0};
  return reading;
}

void add_first_token(Statistics& statistics, std::uint64_t ns) {
  const std::size_t place = HistogramName("time_to_first_token_seconds").place();
  ++statistics.observed.cells[kHistogramCells[place]];
  statistics.observed.cells[kHistogramCells[place + 1] - 1] += ns;
}

TEST(History, RatesAreOfTheSecondNotOfTheWholeTime) {
  History history;
  HiveReading before = reading_at(10, {});
  set(before.statistics.totals, "generated_tokens", 1'000'000);
  HiveReading now = reading_at(12, {});
  set(now.statistics.totals, "generated_tokens", 1'000'300);
  set(now.statistics.totals, "prompt_tokens", 200);
  set(now.statistics.totals, "cached_tokens", 150);
  set(now.statistics.totals, "waiting", 7);
  add_first_token(now.statistics, 30'000'000);
  add_first_token(now.statistics, 10'000'000);
  history.add(before);
  history.add(now);
  const HiveSecond& second = history.seconds().back();
  EXPECT_EQ(second.generated_rate, 150);
  EXPECT_EQ(second.prompt_rate, 100);
  EXPECT_EQ(second.hit_share, 0.75);
  EXPECT_EQ(second.first_token_ms, 20);
  EXPECT_EQ(second.waiting, 7u);
  EXPECT_EQ(second.used_share, 0.3) << "held, and being filled";
  EXPECT_EQ(second.cached_share, 0.3);
  EXPECT_EQ(history.seconds().front().generated_rate, 0) << "nothing was read before";
}

TEST(History, AQuietSecondHasNoHitRateAndNoFirstToken) {
  History history;
  history.add(reading_at(1, {}));
  history.add(reading_at(2, {}));
  EXPECT_FALSE(history.seconds().back().hit_share.has_value());
  EXPECT_FALSE(history.seconds().back().first_token_ms.has_value());
}

TEST(History, AnotherPoolBeginsAnew) {
  History history;
  HiveReading before = reading_at(1, {engine(0, 50)});
  set(before.statistics.totals, "generated_tokens", 5);
  HiveReading next = reading_at(2, {engine(0, 60)});
  next.epoch = "second";
  set(next.statistics.totals, "generated_tokens", 500);
  history.add(before);
  history.add(next);
  EXPECT_EQ(history.seconds().back().generated_rate, 0);
  EXPECT_TRUE(history.ends().empty()) << "with its daemon an engine ends in order";
}

/// The keeper's numbers are exact, and come later.
TEST(History, WhatTheKeeperTellsOfAnEndIsBelieved) {
  History history;
  history.add(reading_at(1, {engine(0, 50, 3)}));
  history.add(reading_at(2, {engine(0, 51)}));
  ASSERT_EQ(history.ends().size(), 1u);
  EXPECT_FALSE(history.ends()[0].requests.has_value());
  EXPECT_EQ(history.ends()[0].seconds_until_back, 1);
  HiveReading told = reading_at(3, {engine(0, 51)});
  told.told_ends[0] = {50, 1'001'500, 4, 0.032};
  history.add(told);
  EXPECT_EQ(history.ends()[0].requests, 4u);
  EXPECT_EQ(history.ends()[0].seconds_until_back, 0.032);
  EXPECT_EQ(Json::parse(history.json(0))["engine_ends"][0]["requests"], 4);
  told.told_ends[0] = {50, 1'009'500, 4, 0.001};  // it was stopped, and has noticed late
  history.add(told);
  EXPECT_EQ(history.ends()[0].seconds_until_back, 0.032);
  told.told_ends[0] = {49, 1'001'500, 9, 5.0};  // of an earlier process
  history.add(told);
  EXPECT_EQ(history.ends()[0].requests, 4u);
}

TEST(History, AnEngineThatIsGoneAndComesBackIsOneEnd) {
  History history;
  history.add(reading_at(1, {engine(0, 50, 3), engine(1, 51)}));
  history.add(reading_at(2, {engine(1, 51)}));
  ASSERT_EQ(history.ends().size(), 1u);
  EXPECT_EQ(history.ends()[0].engine, 0u);
  EXPECT_EQ(history.ends()[0].unix_time, 1'002);
  EXPECT_EQ(history.ends()[0].running, 3u);
  EXPECT_FALSE(history.ends()[0].seconds_until_back.has_value());
  history.add(reading_at(3, {engine(1, 51)}));
  history.add(reading_at(4, {engine(0, 70), engine(1, 51)}));
  ASSERT_EQ(history.ends().size(), 1u);
  EXPECT_EQ(history.ends()[0].seconds_until_back, 3) << "since it was last seen alive";
}

TEST(History, AnEngineReplacedWithinASecondHasEnded) {
  History history;
  history.add(reading_at(1, {engine(0, 50, 2)}));
  history.add(reading_at(2, {engine(0, 70)}));
  ASSERT_EQ(history.ends().size(), 1u);
  EXPECT_EQ(history.ends()[0].running, 2u);
  EXPECT_EQ(history.ends()[0].seconds_until_back, 1);
}

TEST(History, ADeadEnginesSlotGivesWayToTheNewProcess) {
  ProcessReport dead = engine(0, 50), next = engine(0, 70);
  next.slot = 5;
  next.started = 9;
  History history;
  history.add(reading_at(1, {dead}));
  history.add(reading_at(2, {next, dead}));
  EXPECT_EQ(history.ends().size(), 1u) << "at once, not when the slot is reaped";
  history.add(reading_at(3, {next}));
  EXPECT_EQ(history.ends().size(), 1u);
}

TEST(History, KeepsTheLastMinutesAndTheLastEnds) {
  History history;
  for (std::uint32_t i = 0; i < 1'000; ++i) history.add(reading_at(i, {engine(0, 50 + i)}));
  EXPECT_EQ(history.seconds().size(), History::kSeconds);
  EXPECT_EQ(history.seconds().back().number, 1'000u);
  EXPECT_EQ(history.ends().size(), History::kEnds);
  EXPECT_EQ(history.ends().back().seconds_until_back, 1);
}

TEST(History, OnlyTheSecondsBehindANumberAreTold) {
  History history;
  history.add({});  // no pool
  for (int i = 1; i <= 4; ++i) history.add(reading_at(i, {}));
  const Json all = Json::parse(history.json(0));
  EXPECT_EQ(all["last"], 5);
  ASSERT_EQ(all["seconds"].size(), 5u);
  EXPECT_EQ(all["seconds"][0].size(), 2u) << "without a pool there is only the time";
  EXPECT_EQ(all["seconds"][1].size(), all["columns"].size());
  const Json some = Json::parse(history.json(3));
  ASSERT_EQ(some["seconds"].size(), 2u);
  EXPECT_EQ(some["seconds"][0][0], 4);
  EXPECT_TRUE(Json::parse(history.json(5))["seconds"].empty());
}

}  // namespace
}  // namespace kvhive::testing
