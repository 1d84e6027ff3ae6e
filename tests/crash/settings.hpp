#pragma once
// Settings of a run from the environment: the seed and the duration.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvhive::testing {

/// KVHIVE_SEED, or a random seed. Prints the seed, so that a failure can be repeated.
inline std::uint32_t chosen_seed() {
  const char* wanted = std::getenv("KVHIVE_SEED");
  const auto seed = wanted != nullptr
                        ? static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10))
                        : std::random_device{}();
  std::printf("seed %u (KVHIVE_SEED=%u runs it again)\n", seed, seed);
  return seed;
}

/// KVHIVE_CHAOS_MINUTES: the least duration of the random kills, in minutes; 0 = as in a test run.
inline double chaos_minutes() {
  const char* wanted = std::getenv("KVHIVE_CHAOS_MINUTES");
  return wanted != nullptr ? std::strtod(wanted, nullptr) : 0;
}

/// KVHIVE_KILL_EVERYWHERE: kill a real process at each instruction boundary, not at a sample of
/// them. Takes an hour.
inline bool must_kill_everywhere() { return std::getenv("KVHIVE_KILL_EVERYWHERE") != nullptr; }

}  // namespace kvhive::testing
