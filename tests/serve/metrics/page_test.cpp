// The page, made of numbers that the test chooses.

#include "tools/serve/metrics/page.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/serve/metrics/exposition_parser.hpp"

namespace kvhive::testing {
namespace {

ProcessReport process(std::uint32_t slot, std::uint32_t engine, std::int64_t started,
                      std::uint64_t generated) {
  ProcessReport report;
  report.slot = slot;
  report.pid = 100 + slot;
  report.index = engine;
  report.started = started;
  report.counted.values[CounterName("generated_tokens").place()] = generated;
  return report;
}

MetricsPage page_of_two_engines() {
  MetricsPage page;
  page.model = "m";
  page.keeper_answers = true;
  page.keeper.domains = {"default", "guests"};
  page.keeper.restarts = {{0, 3}};
  page.pool.emplace();
  page.pool->epoch = "abc";
  page.pool->geometry.models[0].tokens_per_block = 16;
  page.pool->statistics.processes = {process(0, 0, 100, 7), process(1, 1, 100, 5)};
  page.pool->statistics.totals.values[CounterName("generated_tokens").place()] = 20;
  TierReport& device = page.pool->blocks.tiers[std::size_t(Tier::device)];
  device.blocks = 10;
  device.held = 3;
  device.filling = 1;
  device.idle = 6;
  page.pool->blocks.held[0][0] = 4;
  page.pool->blocks.held[1][0] = 2;
  page.pool->blocks.domains[DomainId{1}][0] = {3, 4};
  return page;
}

TEST(MetricsPage, AnEngineThatIsStoppedOrHasEndedIsNotUpAndWhatItHadIsNotCounted) {
  MetricsPage page = page_of_two_engines();
  Statistics& statistics = page.pool->statistics;
  statistics.processes.push_back(process(2, 2, 100, 0));
  for (ProcessReport& each : statistics.processes)
    each.counted.values[CounterName("running").place()] = 4;
  statistics.totals.values[CounterName("running").place()] = 12;
  page.pool->states = {
      {0, ProcessState::runs}, {1, ProcessState::stopped}, {2, ProcessState::ended}};
  const MetricsText text(page.text());
  EXPECT_EQ(text.sum("kvhive_engine_up", {{"engine", "0"}}), 1);
  EXPECT_EQ(text.sum("kvhive_engine_up", {{"engine", "1"}}), 0);
  EXPECT_EQ(text.sum("kvhive_engine_up", {{"engine", "2"}}), 0);
  EXPECT_EQ(text.sum("kvhive_engines", {}), 2);
  page.view = MetricsView::host;
  const MetricsText host(page.text());
  EXPECT_EQ(host.sum("vllm:num_requests_running", {}), 8) << "what is stopped goes on";
  EXPECT_EQ(host.sum("vllm:generation_tokens_total", {}), 20) << "what is done stays";
}

TEST(MetricsPage, EachEngineHasASeries) {
  const MetricsText text(page_of_two_engines().text());
  EXPECT_EQ(text.sum("vllm:generation_tokens_total", {{"engine", "0"}, {"model_name", "m"}}), 7);
  EXPECT_EQ(text.sum("vllm:generation_tokens_total", {{"engine", "1"}}), 5);
  EXPECT_EQ(text.sum("vllm:kv_cache_usage_perc", {{"engine", "0"}}), 0.4);
  EXPECT_EQ(text.sum("kvhive_engine_restarts_total", {{"engine", "0"}}), 3);
  EXPECT_EQ(text.sum("kvhive_pool_blocks", {{"tier", "device"}, {"state", "idle"}}), 6);
  EXPECT_EQ(text.sum("kvhive_domain_blocks",
                     {{"domain", "guests"}, {"tier", "device"}, {"state", "held"}}),
            3);
}

/// What is not measured is not there, rather than a histogram without values.
TEST(MetricsPage, TheLivesOfBlocksAreThereIfTheyAreMeasured) {
  MetricsPage page = page_of_two_engines();
  const std::array families = {"vllm:kv_block_lifetime_seconds",
                               "vllm:kv_block_idle_before_evict_seconds",
                               "vllm:kv_block_reuse_gap_seconds"};
  for (const std::string name : families) EXPECT_FALSE(MetricsText(page.text()).has(name)) << name;
  page.pool->geometry.life_stride = 100;
  for (const std::string name : families) EXPECT_TRUE(MetricsText(page.text()).has(name)) << name;
}

/// Endpoint pickers take the first series of a family, whatever its labels.
TEST(MetricsPage, TheHostsViewHasOneSeriesOfAllEnginesThereEverWere) {
  MetricsPage page = page_of_two_engines();
  page.view = MetricsView::host;
  const MetricsText text(page.text());
  EXPECT_EQ(text.sum("vllm:generation_tokens_total"), 20);
  EXPECT_EQ(text.sum("vllm:kv_cache_usage_perc"), 0.4) << "what is shared counts once";
  for (const std::string name : {"vllm:num_requests_waiting", "vllm:num_requests_running",
                                 "vllm:kv_cache_usage_perc", "vllm:cache_config_info"})
    EXPECT_EQ(text.count(name), 1u) << name;
  for (const auto& [name, family] : text.families())
    for (const auto& sample : family.samples)
      EXPECT_FALSE(sample.labels.contains("engine")) << name;
}

TEST(MetricsPage, AServicesViewIsAboutTheServiceAlone) {
  MetricsPage page = page_of_two_engines();
  page.view = MetricsView::service;
  page.service.http[{"/health", "GET", "2xx"}] = 4;
  const MetricsText text(page.text());
  EXPECT_EQ(text.sum("http_requests_total"), 4);
  for (const std::string& name : text.names())
    EXPECT_TRUE(name.starts_with("http_") || name.starts_with("kvhive_serve_")) << name;
}

TEST(MetricsPage, WithoutAPoolItSaysWhatTheServiceKnows) {
  MetricsPage page;
  const MetricsText text(page.text());
  EXPECT_EQ(text.count("kvhive_up"), 1u);
  EXPECT_EQ(text.sum("kvhive_up"), 0);
  EXPECT_TRUE(text.has("kvhive_serve_channels"));
  EXPECT_FALSE(text.has("vllm:num_requests_running"));
}

/// Two equal series would make the whole page unreadable.
TEST(MetricsPage, ADeadEngineGivesWayToTheOneWithItsNumber) {
  MetricsPage page = page_of_two_engines();
  page.pool->statistics.processes = {process(4, 0, 200, 1), process(0, 0, 100, 7)};
  const MetricsText text(page.text());
  EXPECT_EQ(text.sum("vllm:generation_tokens_total", {{"engine", "0"}}), 1);
  EXPECT_EQ(text.sum("kvhive_engine_start_time_seconds", {{"engine", "0"}}), 200);
}

TEST(MetricsPage, DomainsWithoutANameAreOne) {
  MetricsPage page = page_of_two_engines();
  page.pool->blocks.domains[DomainId{700}][0] = {1, 0};
  page.pool->blocks.domains[DomainId{701}][0] = {2, 0};
  const MetricsText text(page.text());
  EXPECT_EQ(text.count("kvhive_domain_blocks", {{"domain", "unknown"}, {"state", "held"}}), 1u);
  EXPECT_EQ(text.sum("kvhive_domain_blocks", {{"domain", "unknown"}, {"state", "held"}}), 3);
}

TEST(MetricsPage, OldNamesAreThereIfAskedFor) {
  MetricsPage page = page_of_two_engines();
  EXPECT_FALSE(MetricsText(page.text()).has("vllm:gpu_cache_usage_perc"));
  page.old_names = OldNames::too;
  const MetricsText text(page.text());
  EXPECT_EQ(text.sum("vllm:gpu_cache_usage_perc", {{"engine", "0"}}), 0.4);
  EXPECT_TRUE(text.has("vllm:gpu_prefix_cache_hits_total"));
  EXPECT_TRUE(text.has("vllm:gpu_prefix_cache_queries_total"));
}

/// A counter that is added to the list needs nothing more to be on the page.
TEST(MetricsPage, EveryCounterIsOnThePage) {
  MetricsPage page = page_of_two_engines();
  page.view = MetricsView::host;
  CounterValues& totals = page.pool->statistics.totals;
  for (std::size_t i = 0; i < kCounters.size(); ++i) {
    const std::string before = page.text();
    totals.values[i] += 1'000'000;
    EXPECT_NE(page.text(), before) << kCounters[i].name;
  }
}

/// Names of metrics in a text: whatever begins as ours and vLLM's do.
std::set<std::string> names_in(const std::string& text) {
  static const std::regex kName("(vllm:|kvhive_|http_)[a-zA-Z0-9_:]+");
  std::set<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), kName), end; found != end; ++found)
    names.insert(found->str());
  return names;
}

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(OperatorFiles, NameOnlyWhatThePageHas) {
  const MetricsText page(page_of_two_engines().text());
  const std::vector<std::string> exported = page.names();
  for (const char* name : {"grafana-dashboard.json", "prometheus-alerts.yml"}) {
    const std::set<std::string> named =
        names_in(text_of_file(std::string(KVHIVE_SOURCE_DIR) + "/tools/service/" + name));
    EXPECT_GT(named.size(), 5u) << name;
    for (const std::string& metric : named)
      EXPECT_EQ(std::count(exported.begin(), exported.end(), metric), 1)
          << metric << " in " << name;
  }
}

TEST(OperatorFiles, DocumentWhatThePageHas) {
  MetricsPage page = page_of_two_engines();
  page.old_names = OldNames::too;
  const MetricsText text(page.text());
  const std::set<std::string> documented =
      names_in(text_of_file(std::string(KVHIVE_SOURCE_DIR) + "/docs/OPERATIONS.md"));
  for (const auto& [name, family] : text.families())
    EXPECT_TRUE(documented.contains(name)) << name << " is not in docs/OPERATIONS.md";
}

}  // namespace
}  // namespace kvhive::testing
