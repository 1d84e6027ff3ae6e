#pragma once
// Input for products.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvhive::testing_support {

/// Normally distributed.
inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

}  // namespace kvhive::testing_support
