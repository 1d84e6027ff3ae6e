#pragma once
// What `kvhive doctor` looks at, one finding for each topic.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.hpp"

namespace kvhive {

enum class Fitness : std::uint8_t {
  good,
  fair,  ///< a daemon runs, but it could run better
  bad,   ///< a daemon does not run
};
constexpr std::array<std::string_view, 3> names_of(Fitness) { return {"good", "fair", "bad"}; }

struct Finding {
  std::string topic, value;
  Fitness fitness = Fitness::good;
  std::string remedy;  ///< empty if it is good
};

/// Looks at this machine, with the limits of this process.
std::vector<Finding> examine_machine();

}  // namespace kvhive
