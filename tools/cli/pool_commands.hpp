#pragma once
// The commands under `kvhive pool`, one file each: pool_stat.cpp, pool_procs.cpp, pool_blocks.cpp,
// pool_map.cpp, pool_fsck.cpp, pool_reset.cpp, why.cpp, pool_ask.cpp. Each adds itself; what it
// does runs in a callback that sets `exit_code`.

#include <nlohmann/json.hpp>

#include "pool/counters.hpp"
#include "tools/cli/command.hpp"

namespace kvhive {

void add_pool_stat(CLI::App& pool, int& exit_code);
void add_pool_procs(CLI::App& pool, int& exit_code);
void add_pool_blocks(CLI::App& pool, int& exit_code);
void add_pool_map(CLI::App& pool, int& exit_code);
void add_pool_fsck(CLI::App& pool, int& exit_code);
void add_pool_reset(CLI::App& pool, int& exit_code);
void add_pool_why(CLI::App& pool, int& exit_code);
void add_pool_ask(CLI::App& pool, int& exit_code);

/// Adds each counter to a JSON object, by its name.
void add_counters(nlohmann::json& json, const CounterValues& counted);
/// Adds "histograms": by name, the buckets' edges, how many values each bucket has (one more than
/// edges), and the sum of all values; and the unit of edges and sum: ns, us, tokens or times.
void add_histograms(nlohmann::json& json, const HistogramValues& observed);

void print(const nlohmann::json& json);

}  // namespace kvhive
