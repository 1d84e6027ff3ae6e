#pragma once
// A small set of test cases in which every pair of values of two factors occurs: most bugs need no
// more than two things to come together.

#include <cstdint>
#include <functional>
#include <vector>

namespace kvhive::testing_support {

/// A value of a factor, both as indices.
struct FactorValue {
  std::size_t factor = 0;
  int value = 0;
};

/// Whether two values can be in one case.
using Allowed = std::function<bool(FactorValue, FactorValue)>;

/// Cases, each with a value for every factor; factor f has values 0..sizes[f]-1. Every allowed pair
/// is in some case, no other is in any. The same on every machine.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, const Allowed& allowed,
                                             std::uint32_t seed);

}  // namespace kvhive::testing_support
