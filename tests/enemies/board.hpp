#pragma once
// What the processes of a run of enemies share: which phase it is, what was measured, what went
// wrong. It lies in memory that is shared by fork; any process may be killed at any moment.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvhive::testing {

enum class Phase : std::uint32_t {
  calm,   ///< the enemies hold nothing of a daemon and compute
  decoy,  ///< the enemies attack another daemon
  storm,  ///< the enemies attack the honest client's daemon
};

inline constexpr std::size_t kPhases = 3;

inline constexpr std::size_t kMostEnemies = 16;
inline constexpr std::size_t kMostAttacks = 64;
inline constexpr std::size_t kMostSamples = std::size_t{1} << 20;

/// A request of the honest client, or a command of the operator.
struct Sample {
  std::uint32_t round;  ///< 0 = in no round, for example while the enemies changed their phase
  float first_ms;       ///< to the first token; of a command: to its end
  float whole_ms;       ///< to the end
};

/// Appended to by one process and read by another.
struct Samples {
  std::atomic<std::size_t> count{0};
  std::array<Sample, kMostSamples> all;

  void add(const Sample& sample) {
    const std::size_t at = count.load(std::memory_order_relaxed);
    if (at == kMostSamples) return;
    all[at] = sample;
    count.store(at + 1, std::memory_order_release);
  }
};

/// Counts what went wrong and keeps the first case in words.
struct Complaints {
  std::atomic<std::uint32_t> count{0};
  std::array<char, 512> first{};

  void add(const std::string& what) {
    if (count.fetch_add(1) == 0) std::snprintf(first.data(), first.size(), "%s", what.c_str());
  }
};

struct Board {
  std::atomic<Phase> phase{Phase::calm};
  std::atomic<std::uint32_t> round{0};
  std::atomic<bool> is_over{false};  ///< the daemon is being stopped: nobody complains any more
  /// Of each enemy: 1 = it has let go of everything and computes.
  std::array<std::atomic<std::uint32_t>, kMostEnemies> is_quiet{};
  std::array<std::atomic<std::uint64_t>, kMostAttacks> attacks{};  ///< made, by place in the list
  std::uint64_t attacks_made() const {
    std::uint64_t sum = 0;
    for (const auto& count : attacks) sum += count;
    return sum;
  }
  Samples requests, commands;
  Complaints honest, operators;
  std::atomic<std::uint64_t> checked_tokens{0};
  std::atomic<std::uint64_t> slowest_connect_us{0};  ///< of the honest client
};

}  // namespace kvhive::testing
