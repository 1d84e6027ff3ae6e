#pragma once
// A small set of test cases in which every pair of values of two factors occurs. Most bugs show
// when two things come together.

#include <cstdint>
#include <functional>
#include <vector>

namespace kvhive::testing_support {

/// One value of one factor; both are indices.
struct FactorValue {
  std::size_t factor = 0;
  int value = 0;
};

/// Whether two values may occur in one case.
using Allowed = std::function<bool(FactorValue, FactorValue)>;

/// Cases with a value for every factor; factor f has values 0..sizes[f]-1. Every allowed pair
/// occurs in some case, no other pair in any. The result is the same on every machine.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, const Allowed& allowed,
                                             std::uint32_t seed);

}  // namespace kvhive::testing_support
