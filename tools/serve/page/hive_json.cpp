#include "tools/serve/page/hive_json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

namespace kvhive {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson tier_json(Tier tier, const TierReport& t) {
  return {{"name", to_string(tier)}, {"blocks", t.blocks},       {"free", t.free},
          {"filling", t.filling},    {"held", t.held},           {"shared", t.shared},
          {"idle", t.idle},          {"forgotten", t.forgotten}, {"retired", t.retired}};
}

OrderedJson pool_json(const PoolReport& pool) {
  OrderedJson tiers = OrderedJson::array();
  for (const Tier tier : {Tier::device, Tier::host})
    if (const TierReport& t = pool.tiers[std::size_t(tier)]; t.blocks != 0)
      tiers.push_back(tier_json(tier, t));
  return {{"epoch", pool.epoch},
          {"resets", pool.resets},
          {"tokens_per_block", pool.geometry.models[0].tokens_per_block},
          {"block_bytes", pool.geometry.block_bytes()},
          {"tiers", std::move(tiers)}};
}

/// \param rate  null = not known: of the first reading, or of an engine that has just come
OrderedJson traffic_json(const CounterValues& counted, const Rate* rate) {
  OrderedJson json = {
      {"running", counted["running"]},
      {"waiting", counted["waiting"]},
      {"prompt_tokens", counted["prompt_tokens"]},
      {"cached_tokens", counted["cached_tokens"]},
      {"generated_tokens", counted["generated_tokens"]},
      {"evicted_blocks", counted["evicted_blocks"]},
      {"preemptions", counted["preemptions_recompute"] + counted["preemptions_swap"]},
      {"prompt_tokens_per_second", nullptr},
      {"generated_tokens_per_second", nullptr}};
  if (rate == nullptr) return json;
  json["prompt_tokens_per_second"] = rounded(rate->prompt_tokens);
  json["generated_tokens_per_second"] = rounded(rate->generated_tokens);
  return json;
}

OrderedJson engine_json(const EngineRow& engine, const HiveMoment& moment, const PageFacts& facts) {
  OrderedJson json = {
      {"engine", engine.number}, {"state", engine.state}, {"is_well", engine.is_well}};
  if (moment.snapshot->pool.geometry.model_count > 1 || facts.models.size() > 1)
    json["model"] = engine.model;
  json["restarts"] = engine.restarts ? OrderedJson(*engine.restarts) : OrderedJson();
  json["held_blocks"] = engine.held_blocks;
  json["started"] = nullptr;
  for (const ProcessReport& process : moment.snapshot->pool.processes)
    if (engine.slot == process.slot) json["started"] = process.started;
  const auto rate = moment.rates.engines.find(engine.number);
  json.update(
      traffic_json(engine.counted, rate != moment.rates.engines.end() ? &rate->second : nullptr));
  return json;
}

OrderedJson domain_json(const DomainRow& domain) {
  OrderedJson json = {{"name", domain.name},
                      {"held_blocks", domain.blocks.held},
                      {"idle_blocks", domain.blocks.idle},
                      {"device_blocks", domain.blocks.device_resident},
                      {"clients", domain.clients}};
  json["min_blocks"] = domain.blocks.limits.min;
  json["max_blocks"] = domain.blocks.limits.max;
  return json;
}

OrderedJson map_json(const PoolMap& map) {
  OrderedJson categories = OrderedJson::array();
  for (std::size_t i = 0; i < map.categories.size(); ++i) {
    const MapCategory& category = map.categories[i];
    const Colour& c = category.colour;
    categories.push_back({{"name", category.name},
                          {"letter", std::string(1, category.letter)},
                          {"colour", fmt::format("#{:02x}{:02x}{:02x}", c.red, c.green, c.blue)},
                          {"is_free", category.is_free},
                          {"blocks", map.totals[i]}});
  }
  OrderedJson tiers = OrderedJson::array();
  for (const TierMap& tier : map.tiers) tiers.push_back(cells_text(tier));
  return {{"by", to_string(map.by)},
          {"categories", std::move(categories)},
          {"cells", std::move(tiers)}};
}

OrderedJson maps_json(const std::vector<PoolMap>& maps) {
  OrderedJson json = {{"blocks_per_cell", maps.front().blocks_per_cell},
                      {"tiers", OrderedJson::array()}};
  for (const TierMap& tier : maps.front().tiers)
    json["tiers"].push_back({{"name", to_string(tier.tier)},
                             {"first_block", tier.first},
                             {"blocks", tier.blocks},
                             {"cells", tier.cells.size()}});
  json["views"] = OrderedJson::array();
  for (const PoolMap& map : maps) json["views"].push_back(map_json(map));
  return json;
}

std::string_view name_of(DaemonState state) {
  switch (state) {
    case DaemonState::answering: return "answering";
    case DaemonState::silent: return "silent";
    case DaemonState::ended: break;
  }
  return "ended";
}

void add_snapshot(OrderedJson& json, const HiveMoment& moment, const PageFacts& facts) {
  const Snapshot& snapshot = *moment.snapshot;
  json["keeper"] = name_of(snapshot.daemon.state);
  // Whole seconds, and only when it matters: else no two answers would be equal.
  json["keeper_silent_seconds"] = snapshot.daemon.state == DaemonState::answering
                                      ? 0
                                      : std::floor(snapshot.daemon.told_ago.value_or(0));
  json["pool"] = pool_json(snapshot.pool);
  json["traffic"] =
      traffic_json(snapshot.pool.totals, moment.rates.hive ? &*moment.rates.hive : nullptr);
  json["engines"] = OrderedJson::array();
  for (const EngineRow& engine : snapshot.engines)
    json["engines"].push_back(engine_json(engine, moment, facts));
  json["domains"] = OrderedJson::array();
  for (const DomainRow& domain : snapshot.domains) json["domains"].push_back(domain_json(domain));
  if (!moment.maps.empty()) json["map"] = maps_json(moment.maps);
}

std::string cell_text(const MapCell& cell) {
  std::string text;
  for (std::size_t i = 0; i < cell.counts.size(); ++i) {
    if (cell.counts[i] == 0) continue;
    if (cell.counts[i] == cell.blocks) return std::to_string(i);
    text += (text.empty() ? "" : ",") + std::to_string(i) + ":" + std::to_string(cell.counts[i]);
  }
  return text;
}

}  // namespace

std::string cells_text(const TierMap& tier) {
  std::string text;
  for (std::size_t i = 0; i < tier.cells.size();) {
    const std::string cell = cell_text(tier.cells[i]);
    std::size_t end = i + 1;
    if (cell.find(':') == std::string::npos)
      while (end < tier.cells.size() && cell_text(tier.cells[end]) == cell) ++end;
    text += (text.empty() ? "" : " ") + cell;
    if (end - i > 1) text += "*" + std::to_string(end - i);
    i = end;
  }
  return text;
}

std::string hive_json(const HiveMoment& moment, const PageFacts& facts) {
  OrderedJson json = {{"schema", 1},
                      {"sight", to_string(moment.sight)},
                      {"trouble", moment.trouble},
                      {"model", facts.models.front()},
                      {"models", facts.models},
                      {"version", facts.version},
                      {"wants_api_key", facts.wants_api_key}};
  if (moment.snapshot) add_snapshot(json, moment, facts);
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace kvhive
