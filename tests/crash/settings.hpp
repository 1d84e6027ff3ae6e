#pragma once
// What the environment says about a run: which seed, how long.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvhive::testing {

/// KVHIVE_SEED, or one of the day. Printed, so that a failure can be had again.
inline std::uint32_t chosen_seed() {
  const char* wanted = std::getenv("KVHIVE_SEED");
  const auto seed = wanted != nullptr
                        ? static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10))
                        : std::random_device{}();
  std::printf("seed %u (KVHIVE_SEED=%u runs it again)\n", seed, seed);
  return seed;
}

/// KVHIVE_CHAOS_MINUTES: how long the random kills go on; 0 = as many as a test run has.
inline double chaos_minutes() {
  const char* wanted = std::getenv("KVHIVE_CHAOS_MINUTES");
  return wanted != nullptr ? std::strtod(wanted, nullptr) : 0;
}

/// KVHIVE_KILL_EVERYWHERE: a real process for each instruction boundary, not for a sample of them.
/// Takes an hour.
inline bool must_kill_everywhere() { return std::getenv("KVHIVE_KILL_EVERYWHERE") != nullptr; }

}  // namespace kvhive::testing
