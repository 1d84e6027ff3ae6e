// What a scheduler counts of its requests, with a clock that the test sets.

#include "actors/scheduler/request_meter.hpp"

#include <gtest/gtest.h>

#include "actors/scheduler/scheduler_state.hpp"
#include "tests/actors/recording_sink.hpp"

namespace kvhive::testing {
namespace {

constexpr TokenId kEos = 99;
std::uint64_t clock_ns = 0;

class RequestMeterTest : public ::testing::Test {
 protected:
  RequestMeterTest() { clock_ns = 1'000; }

  std::shared_ptr<Recording> submit(std::vector<TokenId> prompt, std::uint32_t max_tokens,
                                    std::vector<TokenId> journal = {}, RequestTimes times = {}) {
    auto recording = std::make_shared<Recording>();
    Submission submission;
    submission.key = {1, ++submitted_};
    submission.prompt = std::move(prompt);
    submission.params.max_tokens = max_tokens;
    const std::size_t journaled = journal.size();
    recording->tokens = journal;
    submission.journal = std::move(journal);
    if (times.admitted != 0) submission.earlier_admission = RequestStats{3, 0, 1};
    submission.times = times.taken != 0 ? times : RequestTimes{clock_ns, 0, 0};
    submission.sink = std::make_shared<RecordingSink>(recording, journaled);
    scheduler_.submit(std::move(submission));
    scheduler_.flush();
    return recording;
  }
  struct Step {
    std::vector<std::uint64_t> admitted{};
    std::vector<std::pair<std::uint64_t, TokenId>> sampled{};
    std::vector<std::uint64_t> preempted{};
    std::vector<std::uint64_t> lost{};
  };
  /// \param ns  that the step takes
  void step(std::uint64_t ns, const Step& result) {
    ASSERT_TRUE(scheduler_.next_step());
    clock_ns += ns;
    StepDone done;
    for (const auto seq : result.admitted) done.outcome.admitted.push_back({SeqId{seq}, 0});
    for (const auto seq : result.preempted) done.outcome.preempted.push_back(SeqId{seq});
    for (const auto seq : result.lost) done.outcome.lost.push_back(SeqId{seq});
    for (const auto& [seq, token] : result.sampled)
      done.sampled.push_back({SeqId{seq}, {token, 0, {}}});
    scheduler_.complete(done);
  }

  std::uint64_t count(HistogramName name) const { return values()[name].count(); }
  std::uint64_t sum(HistogramName name) const { return values()[name].sum; }
  HistogramValues& values() const {
    for (std::size_t i = 0; i < kAllHistogramCells; ++i)
      values_.cells[i] = counters_.cells[i].load();
    return values_;
  }

  SlotCounters counters_{};
  SchedulerState scheduler_{{.max_num_seqs = 4,
                             .max_num_batched_tokens = 32,
                             .max_model_len = 16,
                             .vocab_size = 100,
                             .eos_token_ids = {kEos},
                             .tokenizer = nullptr,
                             .counters = &counters_,
                             .clock = [] { return clock_ns; }}};

 private:
  std::uint32_t submitted_ = 0;
  mutable HistogramValues values_;
};

TEST_F(RequestMeterTest, TheTimesOfARequestFollowFromItsSteps) {
  submit({1, 2, 3}, 3);
  clock_ns += 100;              // another step is out
  step(30, {.admitted = {1}});  // a part of the prompt
  step(10, {.sampled = {{1, 7}}});
  EXPECT_EQ(sum("request_queue_time_seconds"), 100u);
  EXPECT_EQ(sum("time_to_first_token_seconds"), 140u);
  EXPECT_EQ(sum("request_prefill_time_seconds"), 40u);
  EXPECT_EQ(count("e2e_request_latency_seconds"), 0u) << "it goes on";
  step(5, {.sampled = {{1, 8}}});
  step(6, {.sampled = {{1, 9}}});
  EXPECT_EQ(count("inter_token_latency_seconds"), 2u);
  EXPECT_EQ(sum("inter_token_latency_seconds"), 11u);
  EXPECT_EQ(sum("e2e_request_latency_seconds"), 151u);
  EXPECT_EQ(sum("request_inference_time_seconds"), 51u);
  EXPECT_EQ(sum("request_decode_time_seconds"), 11u);
  EXPECT_EQ(sum("request_prompt_tokens"), 3u);
  EXPECT_EQ(sum("request_generation_tokens"), 3u);
  for (std::size_t i = 0; i < kHistograms.size(); ++i)
    if (!kHistograms[i].is_of_lives && kHistograms[i].name != "inter_token_latency_seconds" &&
        kHistograms[i].name != "iteration_tokens_total") {
      EXPECT_EQ(values().at(i).count(), 1u) << kHistograms[i].name;
    }
  EXPECT_EQ(counters_["finished_length"].load(), 1u);
}

TEST_F(RequestMeterTest, EachEndIsCountedByItsReason) {
  submit({1, 2, 3}, 5);
  submit({1, 2, 3}, 1);
  submit({1, 2, 3}, 5);
  submit({100}, 5);  // not in the vocabulary
  step(1, {.admitted = {1, 2, 3}, .sampled = {{1, kEos}, {2, 5}, {3, 5}}});
  scheduler_.abort({{{1, 3}}, {}});
  EXPECT_EQ(counters_["finished_stop"].load(), 1u);
  EXPECT_EQ(counters_["finished_length"].load(), 1u);
  EXPECT_EQ(counters_["finished_abort"].load(), 1u);
  EXPECT_EQ(counters_["finished_error"].load(), 1u);
  EXPECT_EQ(count("e2e_request_latency_seconds"), 3u) << "the refused one was never admitted";
}

TEST_F(RequestMeterTest, ARequestAbortedInTheQueueHasNoLatency) {
  submit({1, 2, 3}, 5);
  scheduler_.abort({{{1, 1}}, {}});
  EXPECT_EQ(counters_["finished_abort"].load(), 1u);
  EXPECT_EQ(count("e2e_request_latency_seconds"), 0u);
  EXPECT_EQ(count("request_queue_time_seconds"), 0u);
}

/// The client waits meanwhile, so the gap counts; the first admission stays the first.
TEST_F(RequestMeterTest, APreemptionIsAGapBetweenTokens) {
  submit({1, 2, 3}, 2);
  clock_ns += 10;
  step(1, {.admitted = {1}, .sampled = {{1, 7}}});
  step(20, {.preempted = {1}});
  step(30, {.admitted = {1}, .sampled = {{1, 8}}});
  EXPECT_EQ(sum("inter_token_latency_seconds"), 50u);
  EXPECT_EQ(count("request_queue_time_seconds"), 1u);
  EXPECT_EQ(sum("request_queue_time_seconds"), 10u);
  EXPECT_EQ(sum("request_num_preemptions"), 1u);
}

/// The dead engine has counted admission and first token.
TEST_F(RequestMeterTest, ARequestThatIsTakenOverCountsOnceAndFromItsBeginning) {
  submit({1, 2, 3}, 3, {7, 8}, {200, 300, 600});
  step(50, {.admitted = {1}, .sampled = {{1, 9}}});
  EXPECT_EQ(clock_ns, 1'050u);
  EXPECT_EQ(count("request_queue_time_seconds"), 0u);
  EXPECT_EQ(count("time_to_first_token_seconds"), 0u);
  EXPECT_EQ(count("request_prefill_time_seconds"), 0u);
  EXPECT_EQ(count("inter_token_latency_seconds"), 0u) << "it did not compute the token before";
  EXPECT_EQ(sum("e2e_request_latency_seconds"), 850u);
  EXPECT_EQ(sum("request_inference_time_seconds"), 750u);
  EXPECT_EQ(sum("request_decode_time_seconds"), 450u);
  EXPECT_EQ(sum("request_generation_tokens"), 3u);
  EXPECT_EQ(counters_["finished_length"].load(), 1u);
}

TEST_F(RequestMeterTest, ARequestThatDiedBeforeItsFirstTokenGetsItsTimeToFirstTokenLater) {
  const auto request = submit({1, 2, 3}, 3, {}, {200, 300, 0});
  step(50, {.admitted = {1}, .sampled = {{1, 9}}});
  EXPECT_EQ(count("request_queue_time_seconds"), 0u);
  EXPECT_EQ(sum("time_to_first_token_seconds"), 850u);
  EXPECT_EQ(sum("request_prefill_time_seconds"), 750u);
  EXPECT_EQ(request->times.first_token, 1'050u) << "for the engine that takes it over next";
}

/// Its end is for the other engine to count.
TEST_F(RequestMeterTest, ARequestThatAnotherEngineHasTakenIsNotCounted) {
  const auto lost = submit({1, 2, 3}, 3);
  const auto lost_unknown = submit({1, 2, 3}, 3);
  lost->is_lost = lost_unknown->is_lost = true;
  step(1, {.lost = {1}});
  scheduler_.abort({{}, {1}});
  for (const CounterName reason : {CounterName("finished_stop"), CounterName("finished_length"),
                                   CounterName("finished_abort"), CounterName("finished_error")})
    EXPECT_EQ(counters_[reason].load(), 0u);
}

/// Clocks of engines in different time namespaces.
TEST_F(RequestMeterTest, ATimeIsNeverNegative) {
  submit({1, 2, 3}, 1, {}, {5'000, 0, 0});
  step(10, {.admitted = {1}, .sampled = {{1, 9}}});
  EXPECT_EQ(count("e2e_request_latency_seconds"), 1u);
  EXPECT_EQ(sum("e2e_request_latency_seconds"), 0u);
  EXPECT_EQ(sum("time_to_first_token_seconds"), 0u);
}

}  // namespace
}  // namespace kvhive::testing
