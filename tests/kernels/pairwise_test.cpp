#include "pairwise.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

using namespace testing_support;

bool anything(FactorValue, FactorValue) { return true; }

/// Value 0 of factor 0 goes with value 1 of factor 2 only.
bool one_rule(FactorValue a, FactorValue b) {
  return !(a.factor == 0 && a.value == 0 && b.factor == 2 && b.value != 1);
}

void expect_cover(const std::vector<int>& sizes, const Allowed& allowed) {
  const auto cases = pairwise_cover(sizes, allowed, 1);
  for (std::size_t f = 0; f < sizes.size(); ++f)
    for (std::size_t g = f + 1; g < sizes.size(); ++g)
      for (int v = 0; v < sizes[f]; ++v)
        for (int w = 0; w < sizes[g]; ++w) {
          const bool is_there = std::any_of(cases.begin(), cases.end(), [&](const auto& values) {
            return values[f] == v && values[g] == w;
          });
          EXPECT_EQ(is_there, allowed({f, v}, {g, w})) << f << '=' << v << ' ' << g << '=' << w;
        }
}

TEST(PairwiseCover, HasEveryPair) {
  expect_cover({2, 2, 2}, anything);
  expect_cover({7, 3, 5, 2, 2, 4}, anything);
  expect_cover({1, 9}, anything);
}

TEST(PairwiseCover, HasNoPairThatIsNotAllowed) { expect_cover({3, 4, 5, 2}, one_rule); }

TEST(PairwiseCover, IsFarSmallerThanAllCombinations) {
  const std::vector<int> ten_of_four(10, 4);  // a million combinations; 16 pairs of two factors
  EXPECT_LT(pairwise_cover(ten_of_four, anything, 1).size(), 45u);
}

TEST(PairwiseCover, IsTheSameEachTime) {
  const std::vector<int> sizes{4, 3, 5};
  EXPECT_EQ(pairwise_cover(sizes, anything, 7), pairwise_cover(sizes, anything, 7));
}

}  // namespace
}  // namespace kvhive
