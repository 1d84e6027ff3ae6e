#include "tools/top/panes.hpp"

#include <cmath>
#include <cstdio>

#include "base/byte_size.hpp"

namespace kvhive {
namespace {

constexpr const char* kNothing = "-";

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[32];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

GridCell text_cell(std::string text) { return {std::move(text), 0}; }
/// Sorted below every number.
GridCell no_number() { return {kNothing, -1}; }
GridCell count_cell(std::uint64_t count) {
  return {short_number(static_cast<double>(count)), static_cast<double>(count)};
}
/// A number that is a name: sorted from the lowest.
GridCell name_cell(std::uint64_t number) {
  return {std::to_string(number), -static_cast<double>(number)};
}
GridCell number_cell(std::uint64_t number) {
  return {std::to_string(number), static_cast<double>(number)};
}
GridCell rate_cell(double rate) { return {short_number(rate), rate}; }
GridCell share_cell(double part, double whole) {
  if (whole <= 0) return no_number();
  return {format("%.0f", 100 * part / whole), part / whole};
}
GridCell bytes_cell(std::uint64_t bytes) {
  return {format_bytes(bytes), static_cast<double>(bytes)};
}

Grid engine_grid(const Snapshot& snapshot, const Rates& rates) {
  Grid grid;
  grid.columns = {{"eng", 4, true, 0},        {"state", 13, false, 1},     {"run", 5, true, 2},
                  {"wait", 5, true, 3},       {"prompt/s", 9, true, 5},    {"gen/s", 6, true, 4},
                  {"hit%", 5, true, 6},       {"held", 7, true, 7},        {"preempt", 8, true, 9},
                  {"restarts", 9, true, 8},   {"pid", 8, true, 10},        {"up", 11, false, 11},
                  {"prompts", 8, true, 12},   {"generated", 10, true, 13}, {"evicted", 8, true, 14},
                  {"published", 10, true, 15}};
  const bool has_models = snapshot.pool.geometry.model_count > 1;
  if (has_models) grid.columns.push_back({"model", 10, false, 2});
  for (const EngineRow& engine : snapshot.engines) {
    const CounterValues& counted = engine.counted;
    GridRow row;
    row.is_well = engine.is_well;
    row.cells = {name_cell(engine.number), text_cell((engine.is_well ? "" : "! ") + engine.state)};
    const auto rate = rates.engines.find(engine.number);
    const bool has_rate = rate != rates.engines.end();
    if (engine.slot) {
      row.cells.push_back(count_cell(counted["running"]));
      row.cells.push_back(count_cell(counted["waiting"]));
      row.cells.push_back(has_rate ? rate_cell(rate->second.prompt_tokens) : no_number());
      row.cells.push_back(has_rate ? rate_cell(rate->second.generated_tokens) : no_number());
      row.cells.push_back(share_cell(static_cast<double>(counted["cached_tokens"]),
                                     static_cast<double>(counted["prompt_tokens"])));
      row.cells.push_back(count_cell(engine.held_blocks));
      row.cells.push_back(
          count_cell(counted["preemptions_recompute"] + counted["preemptions_swap"]));
    } else {
      row.cells.resize(9, no_number());
    }
    row.cells.push_back(engine.restarts ? count_cell(*engine.restarts) : no_number());
    row.cells.push_back(engine.pid != 0 ? number_cell(static_cast<std::uint64_t>(engine.pid))
                                        : no_number());
    row.cells.push_back(
        text_cell(engine.age_seconds != 0 ? duration(engine.age_seconds) : kNothing));
    for (const std::uint64_t value : {counted["prompt_tokens"], counted["generated_tokens"],
                                      counted["evicted_blocks"], counted["published_blocks"]})
      row.cells.push_back(engine.slot ? count_cell(value) : no_number());
    if (has_models) row.cells.push_back(text_cell(engine.model));
    grid.rows.push_back(std::move(row));
  }
  return grid;
}

Grid domain_grid(const Snapshot& snapshot) {
  Grid grid;
  grid.columns = {{"domain", 18, false, 0}, {"held", 7, true, 1},    {"idle", 7, true, 2},
                  {"device", 7, true, 4},   {"device%", 8, true, 3}, {"in use", 7, true, 7},
                  {"min", 6, true, 5},      {"max", 6, true, 6},     {"clients", 8, true, 8},
                  {"channels", 11, true, 9}};
  const double device = static_cast<double>(snapshot.pool.tiers[0].blocks);
  for (const DomainRow& domain : snapshot.domains) {
    const DomainReport& blocks = domain.blocks;
    const auto limit = [](std::uint32_t number) {
      return number != 0 ? count_cell(number) : no_number();
    };
    grid.rows.push_back(
        {{text_cell(domain.name), count_cell(blocks.held), count_cell(blocks.idle),
          count_cell(blocks.device_resident),
          share_cell(static_cast<double>(blocks.device_resident), device),
          count_cell(blocks.device_held), limit(blocks.limits.min), limit(blocks.limits.max),
          count_cell(domain.clients), bytes_cell(domain.channel_bytes)},
         true});
  }
  return grid;
}

Grid client_grid(const Snapshot& snapshot) {
  Grid grid;
  grid.columns = {{"client", 8, true, 0},   {"program", 16, false, 1}, {"uid", 6, true, 3},
                  {"domain", 18, false, 2}, {"engines", 14, false, 4}, {"channel", 11, true, 5}};
  for (const ClientRow& client : snapshot.clients) {
    grid.rows.push_back(
        {{name_cell(static_cast<std::uint64_t>(std::max(client.pid, 0))),
          text_cell(client.program.empty() ? kNothing : client.program), number_cell(client.uid),
          text_cell(client.domain), text_cell(client.engines.empty() ? kNothing : client.engines),
          bytes_cell(client.channel_bytes)},
         true});
  }
  return grid;
}

}  // namespace

Grid grid_of(Pane pane, const Snapshot& snapshot, const Rates& rates) {
  switch (pane) {
    case Pane::engines: return engine_grid(snapshot, rates);
    case Pane::domains: return domain_grid(snapshot);
    case Pane::clients: return client_grid(snapshot);
    case Pane::map: break;
  }
  return {};
}

std::string short_number(double number) {
  if (number <= 0) return "0";
  if (number < 9.95 && number != std::floor(number)) return format("%.1f", number);
  if (number < 9999.5) {
    const int whole = static_cast<int>(std::lround(number));
    return whole < 1000 ? format("%d", whole) : format("%d,%03d", whole / 1000, whole % 1000);
  }
  constexpr std::array<char, 5> kUnits = {'k', 'M', 'G', 'T', 'P'};
  std::size_t unit = 0;
  number /= 1000;
  while (number >= 999.5 && unit + 1 < kUnits.size()) number /= 1000, ++unit;
  return format(number < 99.95 ? "%.1f%c" : "%.0f%c", number, kUnits[unit]);
}

std::string duration(std::uint64_t seconds) {
  const auto hours = static_cast<unsigned long long>(seconds / 3600 % 24);
  const auto minutes = static_cast<unsigned long long>(seconds / 60 % 60);
  const auto days = static_cast<unsigned long long>(seconds / 86400);
  if (days != 0) return format("%llu d %02llu:%02llu", days, hours, minutes);
  return format("%llu:%02llu:%02llu", hours, minutes,
                static_cast<unsigned long long>(seconds % 60));
}

}  // namespace kvhive
