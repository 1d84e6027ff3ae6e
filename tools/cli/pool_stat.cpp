// kvhive pool stat: how full the pool is, how often prompts were found in it, and what was counted
// since kvhived started, by all engines there ever were.

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>

#include "base/byte_size.hpp"
#include "pool/care/index_marks.hpp"
#include "pool/care/pool_report.hpp"
#include "tools/cli/inspector.hpp"
#include "tools/cli/pool_commands.hpp"
#include "tools/cli/table.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;

Json to_json(const TierReport& tier) {
  return {{"blocks", tier.blocks},       {"free", tier.free},      {"filling", tier.filling},
          {"held", tier.held},           {"shared", tier.shared},  {"idle", tier.idle},
          {"forgotten", tier.forgotten}, {"retired", tier.retired}};
}

/// By the domains' names.
using ByDomain = std::map<std::string, DomainReport>;

ByDomain by_domain(const PoolMemory& memory, const Inspector::Domains& domains) {
  ByDomain named;
  for (const auto& [domain, report] : report_domains(memory)) named[domains.name(domain)] = report;
  return named;
}

Json to_json(const DomainReport& domain) {
  const auto& [min, max] = domain.limits;
  return {{"held", domain.held},
          {"idle", domain.idle},
          {"device_resident", domain.device_resident},
          {"device_held", domain.device_held},
          {"min_blocks", min},
          {"max_blocks", max != 0 ? Json(max) : Json()}};
}

/// The arithmetic of the pool's engines.
std::string computed_with(const PoolGeometry& geometry) {
  return std::string(geometry.device == DeviceKind::cpu ? to_string(geometry.cpu_kernels)
                                                        : to_string(geometry.device));
}

Json models_to_json(const Inspector& inspector, const PoolReport& report) {
  const std::vector<std::string> names = inspector.models();
  Json all = Json::array();
  for (std::size_t m = 0; m < report.geometry.model_count; ++m) {
    const ModelCache& cache = report.geometry.models[m];
    const auto& [device, host] = report.models[m];
    all.push_back({{"name", m < names.size() ? names[m] : ""},
                   {"block_size", cache.tokens_per_block},
                   {"unused_bytes_per_block", cache.kv.padding},
                   {"page_layout", to_string(cache.kv.pages)},
                   {"first_group", cache.groups.first},
                   {"groups", cache.groups.count},
                   {"min_blocks", report.geometry.model_minimums[m]},
                   {"device_held", device.held},
                   {"device_idle", device.idle},
                   {"host_held", host.held},
                   {"host_idle", host.idle}});
  }
  return all;
}

std::string in_seconds(std::uint64_t microseconds) {
  const double seconds = static_cast<double>(microseconds) / 1e6;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), seconds < 100 ? "%.3g s" : "%.0f s", seconds);
  return text.data();
}

/// What is not as in every pool.
std::string special_policy(const PoolGeometry& geometry) {
  std::string special;
  if (geometry.eviction_policy != EvictionPolicy::lru)
    special += ", eviction policy " + std::string(to_string(geometry.eviction_policy));
  if (geometry.hash_algorithm != HashAlgorithm::xxhash)
    special += ", names by " + std::string(to_string(geometry.hash_algorithm));
  if (geometry.life_stride != 0)
    special += ", lives of one block in " + std::to_string(geometry.life_stride) + " measured";
  return special;
}

std::string model_table(const Inspector& inspector, const PoolReport& report) {
  const std::vector<std::string> names = inspector.models();
  Table table({"model", "tokens per block", "unused", "groups", "min", "device held", "device idle",
               "host"});
  for (std::size_t m = 0; m < report.geometry.model_count; ++m) {
    const ModelCache& cache = report.geometry.models[m];
    const auto& [device, host] = report.models[m];
    const std::uint32_t min = report.geometry.model_minimums[m];
    table.add({m < names.size() ? names[m] : std::to_string(m),
               std::to_string(cache.tokens_per_block), format_bytes(cache.kv.padding),
               std::to_string(cache.groups.count), min == 0 ? "-" : with_commas(min),
               with_commas(device.held), with_commas(device.idle),
               with_commas(host.held + host.idle)});
  }
  return table.text();
}

Json to_json(const Inspector& inspector, const PoolReport& report, const ByDomain& domains) {
  const IndexMarks marks = count_marks(inspector.memory());
  Json of_domains = Json::object();
  for (const auto& [name, blocks] : domains) of_domains[name] = to_json(blocks);
  Json json = {
      {"model", inspector.model()},
      {"epoch", report.epoch},
      {"resets", report.resets},
      {"block_size", report.geometry.models[0].tokens_per_block},
      {"block_bytes", report.geometry.block_bytes()},
      {"page_layout", to_string(report.geometry.models[0].kv.pages)},
      {"computed", computed_with(report.geometry)},
      {"eviction_policy", to_string(report.geometry.eviction_policy)},
      {"hash_algorithm", to_string(report.geometry.hash_algorithm)},
      {"life_stride", report.geometry.life_stride},
      {"models", models_to_json(inspector, report)},
      {"tiers", {{"device", to_json(report.tiers[0])}, {"host", to_json(report.tiers[1])}}},
      {"index", {{"buckets", marks.buckets}, {"overflowed", marks.marked}}},
      {"domains", of_domains}};
  add_counters(json, report.totals);
  add_histograms(json, report.observed);
  return json;
}

std::string tier_table(const PoolReport& report) {
  const std::size_t block_bytes = report.geometry.block_bytes();
  Table table({"tier", "blocks", "free", "filling", "held", "shared", "idle", "size", "in use"});
  for (const Tier tier : {Tier::device, Tier::host}) {
    const TierReport& t = report.tiers[std::size_t(tier)];
    if (t.blocks == 0) continue;
    table.add({std::string(to_string(tier)), with_commas(t.blocks), with_commas(t.free),
               with_commas(t.filling), with_commas(t.held), with_commas(t.shared),
               with_commas(t.idle), format_bytes(t.blocks * block_bytes),
               percent(t.filling + t.held, t.blocks)});
  }
  return table.text();
}

/// With limits also what each domain has of the device tier, and may have there.
std::string domain_table(const ByDomain& domains, bool has_limits) {
  const auto limit = [](std::uint32_t blocks) {
    return blocks == 0 ? std::string("-") : with_commas(blocks);
  };
  std::vector<std::string> columns = {"domain", "held", "idle"};
  if (has_limits) columns.insert(columns.end(), {"device", "device held", "min", "max"});
  Table table(columns);
  for (const auto& [name, blocks] : domains) {
    std::vector<std::string> row = {name, with_commas(blocks.held), with_commas(blocks.idle)};
    if (has_limits)
      row.insert(row.end(), {with_commas(blocks.device_resident), with_commas(blocks.device_held),
                             limit(blocks.limits.min), limit(blocks.limits.max)});
    table.add(row);
  }
  return table.text();
}

/// One row per counter: "hit blocks  70  of these, found in the pool".
std::string counter_table(const CounterValues& totals) {
  Table table({"counter", "value", "meaning"});
  for (std::size_t i = 0; i < kCounters.size(); ++i) {
    std::string name(kCounters[i].name);
    std::replace(name.begin(), name.end(), '_', ' ');
    table.add({name, with_commas(totals.values[i]), std::string(kCounters[i].help)});
  }
  return table.text();
}

/// The smallest edge that at least this share of the values does not exceed.
std::string seconds_below(const HistogramInfo& info, const HistogramValue& value, double share) {
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < info.edges.size(); ++i) {
    seen += value.buckets[i];
    if (static_cast<double>(seen) >= share * static_cast<double>(value.count()))
      return "<= " + in_seconds(info.edges[i]);
  }
  return "> " + in_seconds(info.edges.back());
}

/// How long the blocks of the sample kept their contents, and how long these were idle.
std::string lives_table(const HistogramValues& observed) {
  Table table({"sampled blocks", "count", "mean", "50 %", "90 %", "99 %"});
  const auto add = [&](const char* what, HistogramName name) {
    const HistogramInfo& info = kHistograms[name.place()];
    const HistogramValue value = observed[name];
    if (value.count() == 0) return table.add({what, "0", "-", "-", "-", "-"});
    table.add({what, with_commas(value.count()), in_seconds(value.sum / value.count()),
               seconds_below(info, value, 0.5), seconds_below(info, value, 0.9),
               seconds_below(info, value, 0.99)});
  };
  add("from allocation to allocation", "kv_block_lifetime_seconds");
  add("from the last use to allocation", "kv_block_idle_before_evict_seconds");
  add("between two uses", "kv_block_reuse_gap_seconds");
  return table.text();
}

Expected<void> stat(const CommonFlags& flags) {
  auto inspector =
      Inspector::attach(flags.socket_path(), Privilege::metadata_only, WithoutKeeper::read_pool);
  if (!inspector) return forward_error(inspector);
  auto names = inspector->domains();
  if (!names) return forward_error(names);
  const PoolReport report = report_pool(inspector->memory());
  const auto domains = by_domain(inspector->memory(), *names);
  if (flags.output() == Format::json) {
    print(to_json(*inspector, report, domains));
    return {};
  }
  const ModelCache& first = report.geometry.models[0];
  const std::string size = format_bytes(report.geometry.block_bytes());
  if (report.geometry.model_count == 1)
    std::printf("pool %.8s of %s: blocks of %u tokens, %s each (%s, computed with %s%s)\n\n%s\n",
                report.epoch.c_str(), inspector->model().c_str(), first.tokens_per_block,
                size.c_str(), std::string(to_string(first.kv.pages)).c_str(),
                computed_with(report.geometry).c_str(), special_policy(report.geometry).c_str(),
                tier_table(report).c_str());
  else
    std::printf("pool %.8s of %u models: blocks of %s, computed with %s%s\n\n%s\n%s\n",
                report.epoch.c_str(), report.geometry.model_count, size.c_str(),
                computed_with(report.geometry).c_str(), special_policy(report.geometry).c_str(),
                tier_table(report).c_str(), model_table(*inspector, report).c_str());
  if (names->names.size() > 1)
    std::printf("%s\n", domain_table(domains, report.geometry.limited_domains() != 0).c_str());
  const IndexMarks marks = count_marks(inspector->memory());
  if (report.resets != 0)
    std::printf(
        "resets of the prefix cache: %u; %s of the idle blocks are from before, and found by "
        "nobody\n",
        report.resets, with_commas(report.tiers[0].forgotten + report.tiers[1].forgotten).c_str());
  std::printf("index: %s of %s buckets have overflowed; lookups there read a second one\n\n",
              with_commas(marks.marked).c_str(), with_commas(marks.buckets).c_str());
  if (report.geometry.life_stride != 0) std::printf("%s\n", lives_table(report.observed).c_str());
  const CounterValues& totals = report.totals;
  std::printf("since kvhived started, by all engines, dead ones included:\n\n%s\n",
              counter_table(totals).c_str());
  std::printf("%s of the prompt tokens were cached\n",
              percent(totals["cached_tokens"], totals["prompt_tokens"]).c_str());
  return {};
}

}  // namespace

void add_pool_stat(CLI::App& pool, int& exit_code) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = pool.add_subcommand("stat", "how full it is and how often it was hit");
  flags->add_to(*command);
  command->callback([flags, &exit_code] {
    if (auto done = stat(*flags); !done) exit_code = fail(done.error());
  });
}

}  // namespace kvhive
