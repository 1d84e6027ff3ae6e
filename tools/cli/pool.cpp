// kvhive pool: commands that look into the pool of a running daemon, read-only.

#include <cstdio>

#include "tools/cli/pool_commands.hpp"

namespace kvhive {

void add_counters(nlohmann::json& json, const CounterValues& counted) {
  for (std::size_t i = 0; i < kCounters.size(); ++i)
    json[std::string(kCounters[i].name)] = counted.values[i];
}

namespace {

const char* short_name(HistogramUnit unit) {
  switch (unit) {
    case HistogramUnit::nanoseconds: return "ns";
    case HistogramUnit::microseconds: return "us";
    case HistogramUnit::tokens: return "tokens";
    case HistogramUnit::times: return "times";
  }
  return "";
}

}  // namespace

void add_histograms(nlohmann::json& json, const HistogramValues& observed) {
  nlohmann::json& all = json["histograms"] = nlohmann::json::object();
  for (std::size_t i = 0; i < kHistograms.size(); ++i) {
    const HistogramInfo& info = kHistograms[i];
    const HistogramValue value = observed.at(i);
    all[std::string(info.name)] = {
        {"unit", short_name(info.unit)},
        {"edges", std::vector(info.edges.begin(), info.edges.end())},
        {"buckets", std::vector(value.buckets.begin(), value.buckets.end())},
        {"sum", value.sum}};
  }
}

void print(const nlohmann::json& json) { std::printf("%s\n", json.dump(2).c_str()); }

void add_pool(CLI::App& app, int& exit_code) {
  CLI::App* pool = app.add_subcommand("pool", "look into the pool of a running daemon");
  pool->require_subcommand(1);
  add_pool_stat(*pool, exit_code);
  add_pool_procs(*pool, exit_code);
  add_pool_blocks(*pool, exit_code);
  add_pool_map(*pool, exit_code);
  add_pool_fsck(*pool, exit_code);
  add_pool_reset(*pool, exit_code);
  add_pool_why(*pool, exit_code);
  add_pool_ask(*pool, exit_code);
}

}  // namespace kvhive
