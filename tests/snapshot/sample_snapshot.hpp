#pragma once
// A hive in numbers that a test can predict.

#include "tests/map/sample_map.hpp"
#include "tools/snapshot/rates.hpp"

namespace kvhive::testing {

inline void set(CounterValues& counters, CounterName name, std::uint64_t value) {
  counters.values[name.place()] = value;
}

inline EngineRow sample_engine(std::uint32_t number, const std::string& state) {
  EngineRow engine;
  engine.number = number;
  engine.pid = static_cast<pid_t>(4000 + number);
  engine.state = state;
  engine.is_well = state == "serving";
  engine.restarts = number;
  engine.age_seconds = 753 + number;
  if (state == "down") return engine;
  engine.slot = number;
  engine.held_blocks = 40 + number;
  set(engine.counted, "running", 3 + number);
  set(engine.counted, "waiting", number * 7);
  set(engine.counted, "prompt_tokens", 20'000);
  set(engine.counted, "cached_tokens", 5'000 + 400 * number);
  set(engine.counted, "generated_tokens", 1'234'567);
  set(engine.counted, "preemptions_recompute", number);
  return engine;
}

/// 600 blocks on the device and 200 in the host tier, as one letter each
/// (tests/map/sample_map.hpp).
inline Snapshot sample_snapshot(std::uint32_t engines = 2) {
  Snapshot snapshot;
  snapshot.seconds = 100;
  snapshot.daemon.model = "demo";
  snapshot.daemon.keeper = 3999;
  snapshot.daemon.age_seconds = 7'384;
  snapshot.daemon.told_ago = 0.2;
  snapshot.pool.epoch = "00112233445566778899aabbccddeeff";
  snapshot.pool.geometry = geometry_of(600, 200);
  snapshot.pool.tiers[0] = {600, 350, 10, 90, 30, 149, 1};
  snapshot.pool.tiers[1] = {200, 150, 0, 0, 0, 50, 0};
  set(snapshot.pool.totals, "prompt_tokens", 40'000);
  set(snapshot.pool.totals, "cached_tokens", 11'000);
  set(snapshot.pool.totals, "generated_tokens", 2'000'000);
  set(snapshot.pool.totals, "running", 7);
  set(snapshot.pool.totals, "waiting", 7);
  for (std::uint32_t i = 0; i < engines; ++i)
    snapshot.engines.push_back(sample_engine(i, i == 1 ? "stopped" : "serving"));
  snapshot.domains = {{"default", {80, 120, 170, 80, {}}, 1, 2u << 20},
                      {"team", {20, 79, 79, 20, {150, 0}}, 2, 4u << 20}};
  snapshot.clients = {{5001, 1000, "python3", "default", "0,1", 2u << 20},
                      {5002, 1001, "kvhive", "team", "0,1", 2u << 20},
                      {5003, 1001, "a\033[2Jname", "team", "1", 2u << 20}};
  BlockSorter sorter(snapshot.pool.geometry, MapBy::state, {});
  const std::string device = std::string(10, 'F') + std::string(60, 'H') + std::string(30, 'S') +
                             std::string(149, 'I') + "X" + std::string(350, '.');
  const std::string host = std::string(50, 'I') + std::string(150, '.');
  std::uint32_t id = 0;
  for (const char state : device + host) sorter.add(block_of(state, ++id, 600));
  snapshot.blocks = std::move(sorter).finish();
  return snapshot;
}

/// Two seconds before sample_snapshot().
inline Snapshot earlier_snapshot() {
  Snapshot before = sample_snapshot();
  before.seconds = 98;
  set(before.pool.totals, "prompt_tokens", 36'000);
  set(before.pool.totals, "cached_tokens", 8'000);
  set(before.pool.totals, "generated_tokens", 1'999'880);
  set(before.engines[0].counted, "prompt_tokens", 18'000);
  set(before.engines[0].counted, "generated_tokens", 1'234'467);
  return before;
}

}  // namespace kvhive::testing
