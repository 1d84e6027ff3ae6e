#include "tools/placement/engine_places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvhive {
namespace {

using ::testing::HasSubstr;

constexpr CpuBind::Way kAuto = CpuBind::Way::automatic;

ProcessorMap machine(const std::string& text) {
  auto map = ProcessorMap::made_up(text);
  EXPECT_TRUE(map.has_value()) << text;
  return std::move(*map);
}

/// Two nodes of four cores, of two processors each: core c has 2c and 2c + 1.
ProcessorMap two_nodes() { return machine("numa:2 core:4 pu:2"); }

EnginePlaces placed(const ProcessorMap& map, std::uint32_t engines, std::uint32_t threads = 0,
                    const CpuBind& bind = {}, std::optional<ProcessorQuota> quota = {}) {
  auto places = place_engines(bind, engines, threads, map, quota);
  EXPECT_TRUE(places.has_value());
  return std::move(*places);
}

std::vector<std::string> lists(const EnginePlaces& places) {
  std::vector<std::string> texts;
  for (const EnginePlace& engine : places.engines) texts.push_back(to_string(engine.processors));
  return texts;
}

std::vector<std::uint32_t> threads(const EnginePlaces& places) {
  std::vector<std::uint32_t> counts;
  for (const EnginePlace& engine : places.engines) counts.push_back(engine.threads);
  return counts;
}

using Texts = std::vector<std::string>;
using Counts = std::vector<std::uint32_t>;

TEST(ProcessorMap, CountsCoresAndKnowsNodes) {
  const ProcessorMap map = two_nodes();
  EXPECT_EQ(to_string(map.processors()), "0-15");
  EXPECT_EQ(map.cores(), 8u);
  EXPECT_EQ(map.cores_of({0, 1, 2}), 2u);
  EXPECT_EQ(map.nodes_of(map.processors()), NodeList({0, 1}));
  EXPECT_EQ(map.nodes_of({9}), NodeList({1}));
  EXPECT_EQ(to_string(map.processors_near(1)), "8-15");
}

TEST(ProcessorMap, OfThisProcessHasThoseThatItMayRunOn) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  auto map = ProcessorMap::of_this_process();
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->processors().size(), static_cast<std::size_t>(CPU_COUNT(&mine)));
  for (const std::uint32_t number : map->processors()) EXPECT_TRUE(CPU_ISSET(number, &mine));
  EXPECT_FALSE(map->nodes_of(map->processors()).empty());
}

TEST(EnginePlaces, EachOfSeveralHasCoresOfItsOwnOnOneNode) {
  const EnginePlaces two = placed(two_nodes(), 2);
  EXPECT_EQ(lists(two), Texts({"0-7", "8-15"}));
  EXPECT_EQ(threads(two), Counts({4, 4}));
  const EnginePlaces four = placed(two_nodes(), 4);
  EXPECT_EQ(lists(four), Texts({"0-3", "4-7", "8-11", "12-15"}));
  EXPECT_EQ(threads(four), Counts({2, 2, 2, 2}));
}

TEST(EnginePlaces, OneHasTheWholeMachine) {
  const EnginePlaces one = placed(two_nodes(), 1);
  EXPECT_EQ(lists(one), Texts({""}));
  EXPECT_EQ(threads(one), Counts({8})) << "cores, not processors";
}

TEST(EnginePlaces, AllHaveTheSameThreadsThoughSomeHaveMoreCores) {
  const EnginePlaces three = placed(two_nodes(), 3);
  EXPECT_EQ(threads(three), Counts({2, 2, 2}));
  for (const EnginePlace& engine : three.engines)
    EXPECT_EQ(two_nodes().nodes_of(engine.processors).size(), 1u);
}

TEST(EnginePlaces, WhereThereAreTooFewCoresNobodyIsBound) {
  EXPECT_EQ(lists(placed(two_nodes(), 9)), Texts(9, ""));
  EXPECT_EQ(placed(two_nodes(), 9).reason, "9 engines share 8 cores");
  EXPECT_EQ(threads(placed(two_nodes(), 9)), Counts(9, 1));
  const EnginePlaces crowded = placed(two_nodes(), 2, 5);
  EXPECT_EQ(lists(crowded), Texts({"", ""}));
  EXPECT_EQ(threads(crowded), Counts({5, 5}));
  EXPECT_EQ(crowded.reason, "with 5 threads each, one would have 4 cores");
}

TEST(EnginePlaces, TwiceAsManyEnginesAsCoresAreTwoOnEach) {
  const ProcessorMap map = machine("numa:1 core:2 pu:1");
  EXPECT_EQ(lists(placed(map, 4)), Texts({"0", "1", "0", "1"}));
  EXPECT_EQ(threads(placed(map, 4)), Counts(4, 1));
  EXPECT_EQ(lists(placed(map, 4, 2)), Texts(4, "")) << "each has more threads than that";
  EXPECT_EQ(lists(placed(map, 3)), Texts(3, "")) << "one would have a core for itself";
}

TEST(EnginePlaces, ThreadsAreNotMoreThanAQuotaHasTimeFor) {
  EXPECT_EQ(threads(placed(two_nodes(), 2, 0, {}, ProcessorQuota{4.5, ""})), Counts({2, 2}));
  EXPECT_EQ(threads(placed(two_nodes(), 2, 0, {}, ProcessorQuota{0.5, ""})), Counts({1, 1}));
  EXPECT_EQ(threads(placed(two_nodes(), 2, 3, {}, ProcessorQuota{2, ""})), Counts({3, 3}))
      << "but as many as the operator asks for";
}

TEST(EnginePlaces, ListsAreTakenAsTheyAre) {
  const CpuBind bind = *parse_cpu_bind("0-3|8");
  const EnginePlaces places = placed(two_nodes(), 2, 0, bind);
  EXPECT_EQ(lists(places), Texts({"0-3", "8"}));
  EXPECT_EQ(threads(places), Counts({2, 1})) << "one for each core of the list";
  const auto refused = place_engines(*parse_cpu_bind("0|14-16"), 2, 0, two_nodes(), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().text,
            "cpu-bind: processor 16 of engine 1's list is none that kvhived may run on; those are "
            "0-15");
}

TEST(EnginePlaces, NoneBindsNobody) {
  const EnginePlaces places = placed(two_nodes(), 2, 0, *parse_cpu_bind("none"));
  EXPECT_EQ(lists(places), Texts({"", ""}));
  EXPECT_EQ(threads(places), Counts({4, 4}));
}

TEST(EnginePlaces, MemoryLiesOnTheNodesThatEnginesAreNearTo) {
  const ProcessorMap map = two_nodes();
  EXPECT_EQ(nodes_for(placed(map, 2).engines, map), NodeList({0, 1}));
  EXPECT_EQ(nodes_for(placed(map, 1).engines, map), NodeList({0, 1})) << "it runs on both";
  EXPECT_EQ(nodes_for(placed(map, 1, 0, *parse_cpu_bind("8-11")).engines, map), NodeList({1}));
  const ProcessorMap small = machine("numa:1 core:4 pu:1");
  EXPECT_EQ(nodes_for(placed(small, 2).engines, small), NodeList()) << "there is no choice";
}

}  // namespace
}  // namespace kvhive
