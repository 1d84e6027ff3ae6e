// Entries that are found in the order of the step before, and in any other.

#include "actors/step_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvhive {
namespace {

using Map = std::unordered_map<SeqId, int>;

TEST(StepOrder, FindsWhatTheMapHasInWhateverOrder) {
  std::mt19937 random(5);
  Map map;
  StepOrder<int> order;
  std::vector<SeqId> asked;
  for (int step = 0; step < 2'000; ++step) {
    for (std::uint64_t seq = 1; seq <= 20; ++seq)
      if (random() % 8 == 0) {
        if (map.contains(SeqId{seq})) order.forget();
        if (map.erase(SeqId{seq}) == 0) map[SeqId{seq}] = step;
      }
    if (random() % 3 == 0) {
      asked.clear();
      for (std::uint64_t seq = 1; seq <= 20; ++seq)
        if (random() % 2 == 0) asked.push_back(SeqId{seq});
      std::shuffle(asked.begin(), asked.end(), random);
    }
    order.begin();
    for (const SeqId seq : asked) {
      const auto there = map.find(seq);
      ASSERT_EQ(order.find(map, seq), there == map.end() ? nullptr : &there->second);
    }
  }
}

/// A sequence may come again under the same number, as another entry.
TEST(StepOrder, ForgetsWhatLeavesInTheMiddleOfAStep) {
  Map map{{SeqId{1}, 1}, {SeqId{2}, 2}};
  StepOrder<int> order;
  for (int time = 0; time < 2; ++time) {
    order.begin();
    ASSERT_EQ(*order.find(map, SeqId{1}), 1);
    order.forget();
    map.erase(SeqId{2});
    EXPECT_EQ(order.find(map, SeqId{2}), nullptr);
    map[SeqId{2}] = 3;
    EXPECT_EQ(*order.find(map, SeqId{2}), 3);
  }
}

}  // namespace
}  // namespace kvhive
