#include "pool/counters.hpp"

#include <gtest/gtest.h>

#include <set>

#include "pool/care/pool_report.hpp"
#include "pool/care/reaper.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

HistogramValues values_of(const SlotCounters& counters) {
  HistogramValues values;
  for (std::size_t i = 0; i < kAllHistogramCells; ++i) values.cells[i] = counters.cells[i].load();
  return values;
}

TEST(Histograms, EdgesAscendAndNamesDiffer) {
  std::set<std::string_view> names;
  for (const HistogramInfo& histogram : kHistograms) {
    EXPECT_TRUE(names.insert(histogram.name).second) << histogram.name;
    ASSERT_FALSE(histogram.edges.empty());
    for (std::size_t i = 1; i < histogram.edges.size(); ++i)
      EXPECT_LT(histogram.edges[i - 1], histogram.edges[i]) << histogram.name;
  }
}

/// Every value lies in one bucket, and a value that equals an edge in the edge's own.
TEST(Histograms, AValueCountsInTheFirstBucketWhoseEdgeIsNotLess) {
  for (std::size_t place = 0; place < kHistograms.size(); ++place) {
    const HistogramInfo& info = kHistograms[place];
    if (info.name != "iteration_tokens_total") continue;
    SlotCounters counters{};
    std::uint64_t sum = 0;
    for (const std::uint64_t edge : info.edges)
      for (const std::uint64_t value : {edge, edge + 1}) {
        counters.observe("iteration_tokens_total", value);
        sum += value;
      }
    const HistogramValues values = values_of(counters);
    const HistogramValue value = values.at(place);
    ASSERT_EQ(value.buckets.size(), info.edges.size() + 1);
    EXPECT_EQ(value.buckets.front(), 1u);  // 1, but not 2
    for (std::size_t i = 1; i + 1 < value.buckets.size(); ++i) EXPECT_EQ(value.buckets[i], 2u) << i;
    EXPECT_EQ(value.buckets.back(), 1u);  // behind the last edge
    EXPECT_EQ(value.count(), 2 * info.edges.size());
    EXPECT_EQ(value.sum, sum);
  }
}

TEST(Histograms, NoneWritesIntoAnothersCells) {
  SlotCounters counters{};
  counters.observe("request_num_preemptions", ~0ull >> 1);
  counters.observe("time_to_first_token_seconds", 0);
  const HistogramValues values = values_of(counters);
  for (std::size_t place = 0; place < kHistograms.size(); ++place) {
    const bool is_written = kHistograms[place].name == "request_num_preemptions" ||
                            kHistograms[place].name == "time_to_first_token_seconds";
    EXPECT_EQ(values.at(place).count(), is_written ? 1u : 0u) << kHistograms[place].name;
  }
  EXPECT_EQ(values["time_to_first_token_seconds"].buckets.front(), 1u);
  EXPECT_EQ(values["request_num_preemptions"].buckets.back(), 1u);
  EXPECT_EQ(values["request_num_preemptions"].sum, ~0ull >> 1);
}

TEST(Histograms, TheNextProcessObservesFromZeroAndTotalsIncludeDeadProcesses) {
  const PoolMemory memory = private_pool(small_geometry(8));
  for (std::uint32_t life = 0; life < 3; ++life) {
    sign_in(memory, ProcessSlot{0}, 0);
    SlotCounters& counters = memory.control().processes[0].counters;
    const auto expect_of_process = [&](std::uint64_t count, std::uint64_t sum) {
      const Statistics now = read_statistics(memory);
      const HistogramValue seen = now.processes.at(0).observed["iteration_tokens_total"];
      EXPECT_EQ(seen.count(), count);
      EXPECT_EQ(seen.sum, sum);
    };
    expect_of_process(0, 0);
    counters.observe("iteration_tokens_total", 40);
    counters.observe("iteration_tokens_total", 2);
    expect_of_process(2, 42);
    reap(memory, ProcessSlot{0});
    const Statistics after = read_statistics(memory);
    EXPECT_TRUE(after.processes.empty());
    EXPECT_EQ(after.observed["iteration_tokens_total"].count(), 2u * (life + 1));
    EXPECT_EQ(after.observed["iteration_tokens_total"].sum, 42u * (life + 1));
  }
}

}  // namespace
}  // namespace kvhive::testing
