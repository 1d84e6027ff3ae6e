#pragma once
// Counts in the pool's statistics what becomes of the requests of one engine (pool/counters.hpp).
//
// An engine that is killed between an event and its count leaves a request uncounted, never counted
// twice: the event is first written where the next engine finds it, and counted then; and a request
// is counted before its client is rung.

#include <algorithm>
#include <cstdint>

#include "base/stop_watch.hpp"
#include "ipc/channel/generation.hpp"
#include "pool/pool_layout.hpp"

namespace kvhive {

class RequestMeter {
 public:
  using Clock = std::uint64_t (*)();  ///< nanoseconds of the machine's monotonic clock

  /// \param counters  of the engine's slot; null = nothing is counted
  RequestMeter(SlotCounters* counters, Clock clock) : counters_(counters), clock_(clock) {}

  std::uint64_t now() const { return clock_(); }

  /// Too much was waiting.
  void overloaded() { count("overloaded_requests"); }
  void admitted(const RequestTimes& times);
  void first_token(const RequestTimes& times);
  /// A further token, computed by the engine that computed the one before.
  void next_token(std::uint64_t ns_between) { observe("inter_token_latency_seconds", ns_between); }
  /// The request has ended. Its sizes and times are counted if an engine had admitted it.
  void finished(FinishReason reason, const RequestTimes& times, const RequestStats& stats,
                std::uint32_t generated_tokens);

 private:
  void count(CounterName name) {
    if (counters_ != nullptr) bump((*counters_)[name], 1);
  }
  void observe(HistogramName name, std::uint64_t value) {
    if (counters_ != nullptr) counters_->observe(name, value);
  }
  /// In a container, an engine may have a monotonic clock that differs from that of the engine from
  /// which it took the request over. Then the time is 0, if it would be negative.
  void observe_time(HistogramName name, std::uint64_t from, std::uint64_t to) {
    observe(name, to - std::min(from, to));
  }

  SlotCounters* counters_;
  Clock clock_;
};

}  // namespace kvhive
