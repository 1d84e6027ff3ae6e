#include "tools/serve/metrics/page.hpp"

#include <algorithm>
#include <utility>

#include "tools/serve/metrics/exposition.hpp"

namespace kvhive {
namespace {

using enum MetricType;

/// One engine, or all together.
struct Row {
  MetricLabels labels;
  const CounterValues& counted;
  const HistogramValues& observed;
  std::uint64_t used_blocks = 0;  ///< of the device tier
};

/// A family of vLLM's that is a counter of kCounters.
struct Twin {
  std::string_view name;
  CounterName counter;
  std::string_view help;
};
constexpr Twin kTwins[] = {
    {"vllm:prompt_tokens_total", "prompt_tokens", "tokens of the prompts of admitted requests"},
    {"vllm:prompt_tokens_cached_total", "cached_tokens",
     "of these, found in the pool instead of computed"},
    {"vllm:generation_tokens_total", "generated_tokens", "tokens generated"},
    {"vllm:spec_decode_num_drafts_total", "drafts",
     "times that a request was guessed ahead in a step"},
    {"vllm:spec_decode_num_draft_tokens_total", "draft_tokens",
     "tokens guessed ahead and computed with a request's newest one"},
    {"vllm:spec_decode_num_accepted_tokens_total", "accepted_draft_tokens",
     "of these, those that the model would have sampled"},
    {"vllm:prefix_cache_queries_total", "queried_tokens",
     "tokens of prompts that were looked up in the pool, once a request"},
    {"vllm:prefix_cache_hits_total", "cached_tokens", "of these, found (device or host tier)"},
};
constexpr Twin kOldTwins[] = {
    {"vllm:gpu_prefix_cache_queries_total", "queried_tokens",
     "an old name of vllm:prefix_cache_queries_total"},
    {"vllm:gpu_prefix_cache_hits_total", "cached_tokens",
     "an old name of vllm:prefix_cache_hits_total"},
};
/// Counters that have a family of vLLM's; each of the others has one of kvhive's.
constexpr CounterName kShownAsVllms[] = {
    "prompt_tokens",  "cached_tokens",   "generated_tokens",    "draft_tokens",
    "queried_tokens", "drafts",          "overloaded_requests", "accepted_draft_tokens",
    "finished_stop",  "finished_length", "finished_abort",      "finished_error"};

bool is_shown_as_vllms(std::size_t place) {
  return std::any_of(std::begin(kShownAsVllms), std::end(kShownAsVllms),
                     [place](CounterName name) { return name.place() == place; });
}

MetricLabels with(MetricLabels labels, std::string_view name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

class Writer {
 public:
  explicit Writer(const MetricsPage& page) : page_(page) {
    if (page_.pool) living_ = totals_of_living(page_.pool->statistics);
  }

  std::string write() {
    if (page_.view != MetricsView::service) {
      gauge("kvhive_up", "1 = a daemon's pool is read; 0 = none can be", page_.pool.has_value());
      gauge("kvhive_keeper_up", "1 = the daemon's keeper answers; 0 = it does not, or is stopped",
            page_.keeper_answers);
    }
    if (page_.pool && page_.view != MetricsView::service) {
      requests();
      blocks(*page_.pool);
      domains(*page_.pool);
      engines(*page_.pool);
    }
    service();
    return out_.take();
  }

 private:
  void requests() {
    const std::vector<Row> rows = this->rows();
    const PoolNumbers& pool = *page_.pool;
    out_.family("vllm:num_requests_running", MetricType::gauge, "requests being served");
    for (const Row& row : rows) out_.sample(row.labels, row.counted["running"]);
    out_.family("vllm:num_requests_waiting", MetricType::gauge, "requests waiting in engines");
    for (const Row& row : rows) out_.sample(row.labels, row.counted["waiting"]);
    usage("vllm:kv_cache_usage_perc", rows);
    cache_config(rows, pool);
    for (const Twin& twin : kTwins) twins(twin, rows);
    out_.family("vllm:num_preemptions_total", counter, "requests that were stopped for others");
    for (const Row& row : rows)
      out_.sample(row.labels,
                  row.counted["preemptions_recompute"] + row.counted["preemptions_swap"]);
    ends(rows);
    out_.family("vllm:admission_rejections_total", counter,
                "requests refused because too much was waiting");
    for (const Row& row : rows)
      out_.sample(with(row.labels, "reason", "max_num_queued_tokens"),
                  row.counted["overloaded_requests"]);
    if (page_.old_names == OldNames::too) {
      usage("vllm:gpu_cache_usage_perc", rows);
      for (const Twin& twin : kOldTwins) twins(twin, rows);
    }
    for (std::size_t i = 0; i < kHistograms.size(); ++i) {
      const HistogramInfo& info = kHistograms[i];
      if (info.is_of_lives && page_.pool->geometry.life_stride == 0) continue;
      out_.family("vllm:" + std::string(info.name), histogram, info.help);
      for (const Row& row : rows) out_.histogram(row.labels, info, row.observed.at(i));
    }
    for (std::size_t i = 0; i < kCounters.size(); ++i) {
      const CounterInfo& info = kCounters[i];
      if (info.kind != CounterKind::sum || is_shown_as_vllms(i)) continue;
      out_.family("kvhive_" + std::string(info.name) + "_total", counter, info.help);
      for (const Row& row : rows) out_.sample(row.labels, row.counted.values[i]);
    }
  }

  ProcessState state_of(const ProcessReport& process) const {
    const auto found = page_.pool->states.find(process.slot);
    return found == page_.pool->states.end() ? ProcessState::runs : found->second;
  }
  bool has_ended(const ProcessReport& process) const {
    return state_of(process) == ProcessState::ended;
  }
  /// Gauges of those that have ended say what was.
  CounterValues totals_of_living(const Statistics& statistics) const {
    CounterValues totals = statistics.totals;
    for (const ProcessReport& process : statistics.processes)
      for (std::size_t i = 0; i < kCounters.size() && has_ended(process); ++i)
        if (kCounters[i].kind == CounterKind::gauge)  // the two were not read at the same time
          totals.values[i] -= std::min(totals.values[i], process.counted.values[i]);
    return totals;
  }

  /// An engine that is dead and not swept up yet has the number of the one that follows it: only
  /// the newest is shown, since no two series may be equal.
  std::map<std::uint32_t, const ProcessReport*> newest() const {
    std::map<std::uint32_t, const ProcessReport*> newest;
    for (const ProcessReport& process : page_.pool->statistics.processes) {
      const ProcessReport*& of_engine = newest[process.index];
      if (of_engine == nullptr || process.started >= of_engine->started) of_engine = &process;
    }
    return newest;
  }

  std::vector<Row> rows() const {
    const PoolNumbers& pool = *page_.pool;
    const MetricLabels model = {{"model_name", all_models()}};
    if (page_.view == MetricsView::host) {
      const TierReport& device = pool.blocks.tiers[std::size_t(Tier::device)];
      return {{model, living_, pool.statistics.observed, device.filling + device.held}};
    }
    std::vector<Row> rows;
    for (const auto& [engine, process] : newest())
      rows.push_back({{{"model_name", model_of(engine)}, {"engine", std::to_string(engine)}},
                      process->counted,
                      process->observed,
                      pool.blocks.held[process->slot][std::size_t(Tier::device)]});
    return rows;
  }

  /// Whether the daemon's only model is this service's: then it is called as requests call it, else
  /// as the daemon calls it.
  bool has_own_name() const {
    return page_.pool->geometry.model_count == 1 && !page_.model.empty();
  }
  std::string all_models() const {
    if (has_own_name()) return page_.model;
    std::string names;
    for (const std::string& name : page_.keeper.models) names += (names.empty() ? "" : ",") + name;
    return names;
  }
  std::string model_of(std::uint32_t engine) const {
    if (has_own_name()) return page_.model;
    const auto found = page_.keeper.model_of.find(engine);
    return found == page_.keeper.model_of.end() ? "" : found->second;
  }
  const ModelCache& cache_of(const std::string& model) const {
    const auto found = std::ranges::find(page_.keeper.models, model);
    const auto place = static_cast<std::size_t>(found - page_.keeper.models.begin());
    const auto models = page_.pool->geometry.all_models();
    return models[place < models.size() ? place : 0];
  }

  /// What is shared counts for each engine that holds it.
  void usage(std::string_view name, const std::vector<Row>& rows) {
    const auto blocks =
        static_cast<double>(page_.pool->blocks.tiers[std::size_t(Tier::device)].blocks);
    out_.family(name, MetricType::gauge,
                "share of the device tier's blocks that are held (0 to 1)");
    for (const Row& row : rows)
      out_.sample(row.labels, blocks == 0 ? 0.0 : static_cast<double>(row.used_blocks) / blocks);
  }

  void twins(const Twin& twin, const std::vector<Row>& rows) {
    out_.family(twin.name, counter, twin.help);
    for (const Row& row : rows) out_.sample(row.labels, row.counted[twin.counter]);
  }

  void ends(const std::vector<Row>& rows) {
    out_.family("vllm:request_success_total", counter, "requests that have ended, by reason");
    for (const Row& row : rows) {
      const CounterValues& counted = row.counted;
      const std::pair<const char*, std::uint64_t> reasons[] = {
          {"stop", counted["finished_stop"]},
          {"length", counted["finished_length"]},
          {"abort", counted["finished_abort"]},
          {"error", counted["finished_error"] + counted["refused_requests"]}};
      for (const auto& [reason, requests] : reasons)
        out_.sample(with(row.labels, "finished_reason", reason), requests);
    }
  }

  void cache_config(const std::vector<Row>& rows, const PoolNumbers& pool) {
    out_.family("vllm:cache_config_info", MetricType::gauge, "the pool's sizes, as labels");
    for (const Row& row : rows) {
      MetricLabels labels = row.labels;
      const ModelCache& cache = cache_of(row.labels.front().second);
      labels.emplace_back("block_size", std::to_string(cache.tokens_per_block));
      labels.emplace_back("cache_dtype", std::string(to_string(cache.kv.dtype)));
      labels.emplace_back("num_gpu_blocks", std::to_string(pool.blocks.tiers[0].blocks));
      labels.emplace_back("num_cpu_blocks", std::to_string(pool.blocks.tiers[1].blocks));
      out_.sample(labels, std::uint64_t{1});
    }
  }

  void blocks(const PoolNumbers& pool) {
    out_.family("kvhive_pool_info", MetricType::gauge, "which pool this is, as labels");
    out_.sample({{"epoch", pool.epoch}}, std::uint64_t{1});
    gauge("kvhive_pool_block_bytes", "bytes of one block's KV", pool.geometry.block_bytes());
    out_.family("kvhive_pool_blocks", MetricType::gauge, "blocks of the pool, by tier and state");
    for_each_tier(pool, [this](const std::string& name, const TierReport& tier) {
      const std::pair<const char*, std::uint64_t> states[] = {
          {"free", tier.free},     {"filling", tier.filling},     {"held", tier.held},
          {"idle", tier.cached()}, {"forgotten", tier.forgotten}, {"retired", tier.retired}};
      for (const auto& [state, blocks] : states)
        out_.sample({{"tier", name}, {"state", state}}, blocks);
    });
    out_.family("kvhive_prefix_cache_resets_total", MetricType::counter,
                "how often all that was cached has been forgotten (kvhive pool reset)");
    out_.sample({}, std::uint64_t{pool.resets});
    out_.family("kvhive_pool_shared_blocks", MetricType::gauge,
                "of the blocks that are held, those that several engines hold");
    for_each_tier(pool, [this](const std::string& name, const TierReport& tier) {
      out_.sample({{"tier", name}}, tier.shared);
    });
    gauge("kvhive_index_buckets", "buckets of the index of prefixes", pool.index.buckets);
    gauge("kvhive_index_overflowed_buckets", "of these, lookups read a second one after so many",
          pool.index.marked);
  }

  template <class Visit>
  static void for_each_tier(const PoolNumbers& pool, Visit&& visit) {
    for (const Tier tier : {Tier::device, Tier::host})
      if (const TierReport& blocks = pool.blocks.tiers[std::size_t(tier)]; blocks.blocks != 0)
        visit(std::string(to_string(tier)), blocks);
  }

  void domains(const PoolNumbers& pool) {
    // Those of which no name is known, perhaps because a descriptor is corrupt, are one.
    std::map<std::string, std::array<DomainBlocks, kTiers>> by_name;
    for (const auto& [domain, blocks] : pool.blocks.domains)
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        by_name[name_of(domain)][tier].held += blocks[tier].held;
        by_name[name_of(domain)][tier].idle += blocks[tier].idle;
      }
    out_.family("kvhive_domain_blocks", MetricType::gauge,
                "blocks with content of a domain, by tier and state");
    for (const auto& [name, tiers] : by_name)
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        if (pool.blocks.tiers[tier].blocks == 0) continue;
        const MetricLabels labels = {{"domain", name},
                                     {"tier", std::string(to_string(Tier(tier)))}};
        out_.sample(with(labels, "state", "held"), tiers[tier].held);
        out_.sample(with(labels, "state", "idle"), tiers[tier].idle);
      }
    limits(pool, "kvhive_domain_min_blocks",
           "blocks of the device tier that others' allocations leave to a domain",
           &BlockLimits::min);
    limits(pool, "kvhive_domain_max_blocks", "most blocks of the device tier for a domain",
           &BlockLimits::max);
  }

  void limits(const PoolNumbers& pool, std::string_view name, std::string_view help,
              std::uint32_t BlockLimits::*limit) {
    out_.family(name, MetricType::gauge, help);
    for (std::uint16_t i = 0; i < pool.geometry.limited_domains(); ++i)
      if (const std::uint32_t blocks = pool.geometry.limits[i].*limit;
          blocks != 0 && i < page_.keeper.domains.size())
        out_.sample({{"domain", page_.keeper.domains[i]}}, std::uint64_t{blocks});
  }

  std::string name_of(DomainId domain) const {
    return domain.value < page_.keeper.domains.size() ? page_.keeper.domains[domain.value]
                                                      : "unknown";
  }

  void engines(const PoolNumbers& pool) {
    const auto& processes = pool.statistics.processes;
    gauge("kvhive_engines", "engines that have the pool",
          std::count_if(processes.begin(), processes.end(),
                        [&](const ProcessReport& p) { return !has_ended(p); }));
    if (page_.view == MetricsView::host) return;
    out_.family("kvhive_engine_up", MetricType::gauge,
                "1 = the engine's process runs; 0 = it is stopped, or has ended");
    for (const auto& [engine, process] : newest())
      out_.sample({{"engine", std::to_string(engine)}},
                  std::uint64_t{state_of(*process) == ProcessState::runs});
    out_.family("kvhive_engine_start_time_seconds", MetricType::gauge,
                "when the engine's process began, since 1970");
    std::map<std::uint32_t, std::int64_t> started;
    for (const ProcessReport& process : pool.statistics.processes)
      started[process.index] = std::max(started[process.index], process.started);
    for (const auto& [engine, seconds] : started)
      out_.sample({{"engine", std::to_string(engine)}}, static_cast<std::uint64_t>(seconds));
    out_.family("kvhive_engine_restarts_total", counter,
                "how often the keeper has started the engine again");
    for (const auto& [engine, restarts] : page_.keeper.restarts)
      out_.sample({{"engine", std::to_string(engine)}}, restarts);
  }

  void service() {
    const ServiceNumbers& numbers = page_.service;
    out_.family("http_requests_total", counter,
                "HTTP requests, by what answered them, method and status class");
    for (const auto& [kind, requests] : numbers.http)
      out_.sample({{"handler", kind.handler}, {"method", kind.method}, {"status", kind.status}},
                  requests);
    out_.family("kvhive_serve_connections", MetricType::gauge,
                "connections, by whether a request is awaited or being answered");
    out_.sample({{"state", "reading"}}, numbers.connections_reading);
    out_.sample({{"state", "answering"}}, numbers.connections_answering);
    gauge("kvhive_serve_requests_running", "requests of this service that engines have",
          numbers.requests_running);
    gauge("kvhive_serve_requests_waiting", "requests of this service that wait for a channel",
          numbers.requests_waiting);
    gauge("kvhive_serve_channels", "channels to the daemon", numbers.channels);
    out_.family("kvhive_serve_unknown_fields_total", counter,
                "fields of requests that are not known, and so changed nothing");
    out_.sample({}, numbers.unknown_fields);
    if (numbers.served_adapters != 0 || !numbers.adapters.empty()) adapters(numbers);
  }

  /// Engines do not count by adapter: this service knows of its own requests only. vLLM's family
  /// has its numbers in labels, and the time as its value: of several series the newest counts.
  void adapters(const ServiceNumbers& numbers) {
    const auto names_of = [&](std::uint64_t ServiceNumbers::OfAdapter::*count) {
      std::string names;
      for (const auto& [name, of] : numbers.adapters)
        if (of.*count != 0) names += (names.empty() ? "" : ",") + name;
      return names;
    };
    out_.family("vllm:lora_requests_info", MetricType::gauge,
                "adapters of this service's requests, as labels; the value is the time");
    out_.sample({{"max_lora", std::to_string(numbers.served_adapters)},
                 {"running_lora_adapters", names_of(&ServiceNumbers::OfAdapter::running)},
                 {"waiting_lora_adapters", names_of(&ServiceNumbers::OfAdapter::waiting)}},
                numbers.unix_seconds);
    out_.family("kvhive_serve_adapter_requests", MetricType::gauge,
                "this service's requests that name an adapter, by whether an engine has admitted "
                "them");
    for (const auto& [name, of] : numbers.adapters) {
      out_.sample({{"adapter", name}, {"state", "running"}}, of.running);
      out_.sample({{"adapter", name}, {"state", "waiting"}}, of.waiting);
    }
    out_.family("kvhive_serve_adapter_requests_total", counter,
                "this service's requests so far that named an adapter");
    for (const auto& [name, of] : numbers.adapters) out_.sample({{"adapter", name}}, of.total);
  }

  void gauge(std::string_view name, std::string_view help, std::uint64_t value) {
    out_.family(name, MetricType::gauge, help);
    out_.sample({}, value);
  }

  const MetricsPage& page_;
  CounterValues living_;  ///< totals, without the gauges of processes that have ended
  Exposition out_;
};

}  // namespace

std::string MetricsPage::text() const { return Writer(*this).write(); }

}  // namespace kvhive
