#pragma once
// The lists of the statistics that a process counts in its slot of the pool: counters, and
// histograms. Memory layout, reports, tables, JSON and the page /metrics are made from these lists.
// A new statistic needs one row here, and one line where the event happens:
//
//   bump(pool.counters()["hit_blocks"], blocks);
//   pool.counters().observe("iteration_tokens_total", tokens);
//
// The name is looked up by the compiler; a name that is not in the list does not compile.
//
// A counter of kind `sum`, and each cell of a histogram, only grows and is never reset, not even
// when its process dies: the slot's next process goes on counting from there. So the sum over all
// slots is the pool's total since kvhived started. What one process has counted is the difference
// from the values at its sign-in (ProcessEntry::at_sign_in). A kill loses the counts of at most one
// step, and nothing is counted twice.
//
// Each cell has one writer at a time, so that no locked instruction is needed: of an engine's
// threads the port writes "refused_requests", the scheduler what it says of requests, and the block
// manager the rest.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvhive {

enum class CounterKind : std::uint8_t {
  sum,    ///< only grows
  gauge,  ///< a current value; 0 when the slot has no process
};

struct CounterInfo {
  std::string_view name;
  CounterKind kind;
  std::string_view help;
};

inline constexpr auto kCounters = std::to_array<CounterInfo>({
    {"queried_blocks", CounterKind::sum,
     "full blocks of prompts that were looked up, once a request: when it was first admitted"},
    {"hit_blocks", CounterKind::sum, "of these, found in the pool (device or host tier)"},
    {"host_hit_blocks", CounterKind::sum, "of these, found in the host tier"},
    {"allocated_blocks", CounterKind::sum, "blocks taken in order to be filled"},
    {"evicted_blocks", CounterKind::sum, "cached blocks that lost their content to an allocation"},
    {"spared_blocks", CounterKind::sum,
     "cached blocks that were to be evicted and got a second chance, since they had been hit"},
    {"published_blocks", CounterKind::sum, "filled blocks made findable by all processes"},
    {"demoted_blocks", CounterKind::sum,
     "blocks evicted from the device tier and moved to the host tier"},
    {"promoted_blocks", CounterKind::sum,
     "blocks found in the host tier and copied to the device tier"},
    {"preemptions_recompute", CounterKind::sum, "running requests stopped, to be computed anew"},
    {"preemptions_swap", CounterKind::sum, "running requests stopped and copied to the host tier"},
    {"generated_tokens", CounterKind::sum, "tokens sampled by the model"},
    {"steps_ahead", CounterKind::sum, "steps planned while the one before was computed"},
    {"ended_rows", CounterKind::sum,
     "tokens that such steps computed of requests that had ended meanwhile"},
    {"drafts", CounterKind::sum, "times that a request was guessed ahead in a step"},
    {"draft_tokens", CounterKind::sum,
     "tokens guessed ahead and computed with a request's newest one"},
    {"accepted_draft_tokens", CounterKind::sum,
     "of these, those that the model would have sampled: each saved a step of its request"},
    {"prompt_tokens", CounterKind::sum,
     "tokens of prompts, once a request: when it was first admitted"},
    {"queried_tokens", CounterKind::sum,
     "of these, those that were looked up: all but those of prompts that are scored"},
    {"cached_tokens", CounterKind::sum, "of these, found in the pool instead of computed"},
    {"hit_tokens_own", CounterKind::sum,
     "of the tokens found, those in blocks that the same engine's process had computed"},
    {"hit_tokens_sibling", CounterKind::sum,
     "of the tokens found, those in blocks that another engine, or an earlier process of this one, "
     "had computed"},
    {"hit_tokens_host", CounterKind::sum, "of the tokens found, those in blocks of the host tier"},
    {"forked_tokens", CounterKind::sum,
     "tokens in blocks that were not full: copied from an ended request, not computed again"},
    {"single_flight_waits", CounterKind::sum,
     "requests that waited for blocks that another request was computing"},
    {"failover_recomputed_tokens", CounterKind::sum,
     "tokens that an engine which died had computed, and the one that went on computed again"},
    {"overloaded_requests", CounterKind::sum, "requests refused because too much was waiting"},
    {"refused_requests", CounterKind::sum,
     "requests refused before they were queued: malformed, too long, or no text"},
    {"finished_stop", CounterKind::sum,
     "requests that ended with an end-of-sequence token, a stop string or a stop token"},
    {"finished_length", CounterKind::sum,
     "requests that ended at their max_tokens, or at the model's length"},
    {"finished_abort", CounterKind::sum, "requests whose client aborted them or left"},
    {"finished_error", CounterKind::sum,
     "requests that the scheduler refused as invalid, or that can never fit"},
    {"running", CounterKind::gauge, "requests being served"},
    {"waiting", CounterKind::gauge, "requests waiting to be admitted"},
});

/// An index into kCounters, found from the counter's name at compile time.
class CounterName {
 public:
  consteval CounterName(const char* name) : place_(place_of(name)) {}  // NOLINT: "name" is meant
  constexpr std::size_t place() const { return place_; }

 private:
  static consteval std::size_t place_of(std::string_view name) {
    for (std::size_t i = 0; i < kCounters.size(); ++i)
      if (kCounters[i].name == name) return i;
    throw "kCounters has no counter of this name";
  }
  std::size_t place_;
};

/// One value per counter, as read at one time.
struct CounterValues {
  std::array<std::uint64_t, kCounters.size()> values{};

  std::uint64_t operator[](CounterName name) const { return values[name.place()]; }
};

/// What a histogram's values are. Its edges and its sum are integers of this unit.
enum class HistogramUnit : std::uint8_t {
  nanoseconds,   ///< shown in seconds
  microseconds,  ///< the same; for sums that would wrap in nanoseconds
  tokens,
  times,
};

/// An observed value counts in the first bucket whose edge is not less than it, or in one more
/// bucket behind the last edge.
struct HistogramInfo {
  std::string_view name;
  HistogramUnit unit;
  std::string_view help;
  std::span<const std::uint64_t> edges;  ///< ascending
  /// Only pools that measure the lives of blocks have values (PoolGeometry::life_stride).
  bool is_of_lives = false;

  /// One for each edge, one behind the last edge, and the sum of all values.
  constexpr std::size_t cells() const { return edges.size() + 2; }
};

namespace histogram_edges {

template <std::size_t n>
consteval std::array<std::uint64_t, n> of_seconds(const double (&seconds)[n],
                                                  double per_second = 1e9) {
  std::array<std::uint64_t, n> edges{};
  for (std::size_t i = 0; i < n; ++i)
    edges[i] = static_cast<std::uint64_t>(seconds[i] * per_second + 0.5);
  return edges;
}

// vLLM's (vllm/v1/metrics/loggers.py), so that its dashboards and sums over both fit. Between
// tokens there are finer ones below 10 ms, where vLLM has none.
inline constexpr auto kFirstToken =
    of_seconds({.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560});
inline constexpr auto kBetweenTokens =
    of_seconds({.00025, .0005, .001, .002, .003, .005, .0075, .01, .025, .05, .075, .1, .15,
                .2,     .3,    .4,   .5,   .75,  1,    2.5,   5,   7.5,  10,  20,   40, 80});
inline constexpr auto kRequest = of_seconds(
    {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680});
inline constexpr auto kRequestTokens =
    std::to_array<std::uint64_t>({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000,
                                  20000, 50000, 100000, 200000, 500000});
inline constexpr auto kPreemptions = std::to_array<std::uint64_t>({1, 2, 3, 4, 5, 10, 20});
inline constexpr auto kBlockLife =
    of_seconds({.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800},
               1e6);
inline constexpr auto kStepTokens =
    std::to_array<std::uint64_t>({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});

}  // namespace histogram_edges

/// The names are vLLM's, also the one with "_total". Times are of the engines' monotonic clock. A
/// request's time begins when an engine takes it out of its channel: what it waited there for an
/// engine is not in it. It is admitted when the step begins that first computes some of it. An
/// engine that takes over from a dead one goes on with the dead one's times, and counts what the
/// dead one has not: each request counts at most once in each histogram, whatever engines die.
inline constexpr auto kHistograms = std::to_array<HistogramInfo>({
    {"time_to_first_token_seconds", HistogramUnit::nanoseconds,
     "from when an engine took a request to its first token", histogram_edges::kFirstToken},
    {"inter_token_latency_seconds", HistogramUnit::nanoseconds,
     "between two steps of the same engine that gave a request tokens",
     histogram_edges::kBetweenTokens},
    {"e2e_request_latency_seconds", HistogramUnit::nanoseconds,
     "from when an engine took a request to its end, of requests that were admitted",
     histogram_edges::kRequest},
    {"request_queue_time_seconds", HistogramUnit::nanoseconds,
     "from when an engine took a request to its first admission", histogram_edges::kRequest},
    {"request_prefill_time_seconds", HistogramUnit::nanoseconds,
     "from the first admission of a request to its first token", histogram_edges::kRequest},
    {"request_decode_time_seconds", HistogramUnit::nanoseconds,
     "from the first token of a request to its end", histogram_edges::kRequest},
    {"request_inference_time_seconds", HistogramUnit::nanoseconds,
     "from the first admission of a request to its end", histogram_edges::kRequest},
    {"request_prompt_tokens", HistogramUnit::tokens,
     "tokens of the prompt, of requests that were admitted and have ended",
     histogram_edges::kRequestTokens},
    {"request_generation_tokens", HistogramUnit::tokens,
     "tokens generated, of requests that were admitted and have ended",
     histogram_edges::kRequestTokens},
    {"request_num_preemptions", HistogramUnit::times,
     "how often a request was preempted, of requests that were admitted and have ended",
     histogram_edges::kPreemptions},
    {"iteration_tokens_total", HistogramUnit::tokens,
     "tokens that a step computed, of prompts and of answers", histogram_edges::kStepTokens},
    {"kv_block_lifetime_seconds", HistogramUnit::microseconds,
     "from one allocation of a sampled block of the device tier to the next",
     histogram_edges::kBlockLife, true},
    {"kv_block_idle_before_evict_seconds", HistogramUnit::microseconds,
     "from the last use of a sampled block's content, or from its allocation, to the next one",
     histogram_edges::kBlockLife, true},
    {"kv_block_reuse_gap_seconds", HistogramUnit::microseconds,
     "between two of the last four uses of a sampled block's content", histogram_edges::kBlockLife,
     true},
});

/// Where a histogram's cells begin among those of all; at kHistograms.size(), how many there are.
inline constexpr auto kHistogramCells = [] {
  std::array<std::size_t, kHistograms.size() + 1> first{};
  for (std::size_t i = 0; i < kHistograms.size(); ++i)
    first[i + 1] = first[i] + kHistograms[i].cells();
  return first;
}();
inline constexpr std::size_t kAllHistogramCells = kHistogramCells.back();

/// An index into kHistograms, found from the histogram's name at compile time.
class HistogramName {
 public:
  consteval HistogramName(const char* name) : place_(place_of(name)) {}  // NOLINT: as CounterName
  constexpr std::size_t place() const { return place_; }

 private:
  static consteval std::size_t place_of(std::string_view name) {
    for (std::size_t i = 0; i < kHistograms.size(); ++i)
      if (kHistograms[i].name == name) return i;
    throw "kHistograms has no histogram of this name";
  }
  std::size_t place_;
};

/// One histogram as read at one time.
struct HistogramValue {
  std::span<const std::uint64_t> buckets;  ///< not cumulative; the last is behind the last edge
  std::uint64_t sum = 0;                   ///< of all values, in the histogram's unit

  std::uint64_t count() const {
    std::uint64_t count = 0;
    for (const std::uint64_t bucket : buckets) count += bucket;
    return count;
  }
};

/// All histograms, as read at one time.
struct HistogramValues {
  std::array<std::uint64_t, kAllHistogramCells> cells{};

  /// The value points into this object.
  HistogramValue at(std::size_t place) const& {
    const auto all = std::span(cells).subspan(kHistogramCells[place], kHistograms[place].cells());
    return {all.first(all.size() - 1), all.back()};
  }
  HistogramValue operator[](HistogramName name) const& { return at(name.place()); }
  HistogramValue at(std::size_t place) && = delete;
  HistogramValue operator[](HistogramName name) && = delete;
};

/// Changes a counter that only the calling process writes: no locked instruction is needed.
template <class Number, class Change>
void bump(std::atomic<Number>& counter, Change change) {
  const Number now = counter.load(std::memory_order_relaxed);
  counter.store(now + static_cast<Number>(change), std::memory_order_relaxed);
}

}  // namespace kvhive
