#pragma once
// How long a random test goes on.

#include <cstdint>
#include <cstdlib>

namespace kvhive::testing {

/// KVHIVE_STEPS, if it is set (`make random`).
inline std::uint64_t random_steps(std::uint64_t usual) {
  const char* const asked = std::getenv("KVHIVE_STEPS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : usual;
}

}  // namespace kvhive::testing
