#include "actors/scheduler/scheduler_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/text/tokenizer_parser.hpp"
#include "tests/actors/recording_sink.hpp"
#include "tests/models/text/small_tokenizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TokenId kEos = 99;

/// A scheduler. The test takes the parts of block manager and executor. The n-th submitted request
/// is SeqId n, in slot n.
class SchedulerStateTest : public ::testing::Test {
 protected:
  struct Sample {
    std::uint64_t seq;
    TokenId token;
  };
  struct Outcome {
    std::vector<std::uint64_t> admitted;
    std::vector<Sample> sampled;
    std::vector<std::uint64_t> preempted;
    std::uint32_t cached = 0;  ///< cached tokens of every admitted sequence
    std::vector<std::uint64_t> lost{};
    std::uint32_t waits_for_others = 0;
  };

  SchedulerState& scheduler() {
    if (!scheduler_) scheduler_.emplace(config_);
    return *scheduler_;
  }

  std::shared_ptr<Recording> submit(std::vector<TokenId> prompt,
                                    const GenerationParams& params = {},
                                    std::vector<TokenId> journal = {}, std::uint64_t channel = 1) {
    auto recording = std::make_shared<Recording>();
    scheduler().submit({{channel, ++submitted_},
                        std::move(prompt),
                        std::move(journal),
                        params,
                        std::make_shared<RecordingSink>(recording)});
    scheduler().flush();
    return recording;
  }
  /// Of a client that no engine has served yet.
  std::shared_ptr<Recording> submit_new(std::vector<TokenId> prompt, DomainId domain = {},
                                        const DomainShare& share = {}, std::int32_t priority = 0) {
    auto recording = std::make_shared<Recording>();
    Submission submission{{1, ++submitted_}, std::move(prompt), {}, {}, {}, domain};
    submission.params.priority = priority;
    submission.sink = std::make_shared<RecordingSink>(recording);
    submission.share = share;
    submission.is_new = true;
    scheduler().submit(std::move(submission));
    scheduler().flush();
    return recording;
  }
  std::shared_ptr<Recording> submit_with_priority(std::int32_t priority) {
    return submit({1, 2, 3}, {.priority = priority});
  }
  void abort(std::uint32_t slot) { scheduler().abort({{{1, slot}}, {}}); }

  StepRequest next_step() {
    auto step = scheduler().next_step();
    KV_CHECK(step.has_value());
    return std::move(*step);
  }
  void complete(const Outcome& outcome) {
    StepDone done;
    for (const auto seq : outcome.admitted)
      done.outcome.admitted.push_back({SeqId{seq}, outcome.cached});
    for (const auto seq : outcome.preempted) done.outcome.preempted.push_back(SeqId{seq});
    for (const auto seq : outcome.lost) done.outcome.lost.push_back(SeqId{seq});
    for (const auto& [seq, token] : outcome.sampled)
      done.sampled.push_back({SeqId{seq}, {token, 0, {}}});
    done.outcome.waits_for_others = outcome.waits_for_others;
    done.outcome.scheduled_tokens = static_cast<std::uint32_t>(outcome.sampled.size());
    scheduler().complete(done);
  }
  StepRequest step(const Outcome& outcome) {
    StepRequest request = next_step();
    complete(outcome);
    return request;
  }

  static std::vector<std::uint64_t> numbers(const std::vector<SeqId>& seqs) {
    std::vector<std::uint64_t> values;
    for (const SeqId seq : seqs) values.push_back(seq.value);
    return values;
  }

  SchedulerConfig config_{.max_num_seqs = 4,
                          .max_num_batched_tokens = 32,
                          .max_model_len = 16,
                          .vocab_size = 100,
                          .eos_token_ids = {kEos},
                          .tokenizer = nullptr};

 private:
  std::optional<SchedulerState> scheduler_;
  std::uint32_t submitted_ = 0;
};

// -- order

/// All but the newest token. Of a prompt of which no token had come, nobody knows.
TEST_F(SchedulerStateTest, TheBlockManagerLearnsHowMuchADeadEngineHadComputed) {
  submit({1, 2, 3}, {.max_tokens = 9}, {4, 5});
  submit({1, 2, 3});
  const StepRequest step = next_step();
  ASSERT_EQ(step.added.size(), 2u);
  for (const NewSequence& added : step.added)
    EXPECT_EQ(added.computed_before, added.tokens.size() == 5 ? 4u : 0u);
}

TEST_F(SchedulerStateTest, ASaltGoesToTheBlockManagerWithItsSequence) {
  Submission salted{{1, 1}, {1, 2, 3}, {}, {}, {}};
  salted.sink = std::make_shared<RecordingSink>(std::make_shared<Recording>());
  salted.salt = {4, 5};
  salted.adapter = 3;
  scheduler().submit(std::move(salted));
  submit({1, 2, 3});
  const StepRequest step = next_step();
  ASSERT_EQ(step.added.size(), 2u);
  EXPECT_EQ(step.added[0].salt, (ExtraKey{4, 5}));
  EXPECT_TRUE(is_none(step.added[1].salt));
  EXPECT_EQ(step.added[0].adapter, 3);
  EXPECT_EQ(step.added[1].adapter, -1);
}

TEST_F(SchedulerStateTest, WithoutRequestsThereIsNoStep) {
  EXPECT_FALSE(scheduler().next_step().has_value());
}

TEST_F(SchedulerStateTest, WaitingSequencesAreOfferedInOrderOfArrivalWithTheTokenBudget) {
  for (int i = 0; i < 3; ++i) submit({1, 2, 3});
  EXPECT_EQ(scheduler().unfinished(), 3u);
  const StepRequest first = next_step();
  EXPECT_THAT(numbers(first.waiting), ElementsAre(1, 2, 3));
  EXPECT_THAT(first.running, IsEmpty());
  EXPECT_EQ(first.token_budget, 32u);
  EXPECT_EQ(first.waiting_in_all, 3u);
}

TEST_F(SchedulerStateTest, RunningSequencesAreServedInOrderOfAdmissionAndTheRestWaits) {
  for (int i = 0; i < 3; ++i) submit({1, 2, 3});
  step({.admitted = {1, 2}, .sampled = {{1, 7}, {2, 8}}});
  const StepRequest second = next_step();
  EXPECT_THAT(numbers(second.running), ElementsAre(1, 2));
  EXPECT_THAT(numbers(second.waiting), ElementsAre(3));
}

TEST_F(SchedulerStateTest, NoMoreThanMaxNumSeqsAreOffered) {
  for (int i = 0; i < 7; ++i) submit({1, 2, 3});
  EXPECT_THAT(numbers(step({.admitted = {1, 2, 3}}).waiting), ElementsAre(1, 2, 3, 4));
  const StepRequest second = next_step();
  EXPECT_THAT(numbers(second.waiting), ElementsAre(4));
  EXPECT_EQ(second.waiting_in_all, 4u);
}

/// Else a few that wait for an engine that is stopped would keep all others waiting.
TEST_F(SchedulerStateTest, ThoseThatWaitForOthersBlocksTakeNoPlaceOfThoseBehind) {
  config_.max_num_seqs = 2;
  for (int i = 0; i < 4; ++i) submit({1, 2, 3});
  EXPECT_THAT(next_step().waiting, ElementsAre(SeqId{1}, SeqId{2}));
  complete({.waits_for_others = 2});
  EXPECT_THAT(next_step().waiting, ElementsAre(SeqId{1}, SeqId{2}, SeqId{3}, SeqId{4}));
  complete({.admitted = {3}, .waits_for_others = 2});
  EXPECT_THAT(next_step().waiting, ElementsAre(SeqId{1}, SeqId{2}, SeqId{4}));
}

TEST_F(SchedulerStateTest, ASequenceIsDescribedOnceAndItsTokensFollow) {
  submit({1, 2, 3}, {.sampling = {.temperature = 0.5f, .seed = 9}, .logprobs = 2});
  const StepRequest first = step({.admitted = {1}, .sampled = {{1, 7}}});
  ASSERT_EQ(first.added.size(), 1u);
  EXPECT_THAT(first.added[0].tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(first.added[0].sampling.seed, 9u);
  EXPECT_EQ(first.added[0].logprobs, 2u);
  const StepRequest second = step({.sampled = {{1, 8}}});
  EXPECT_THAT(second.added, IsEmpty());
}

TEST_F(SchedulerStateTest, AKnownSequenceThatStillWaitsIsNotDescribedAgain) {
  submit({1, 2, 3});
  EXPECT_EQ(step({}).added.size(), 1u);
  const StepRequest second = next_step();
  EXPECT_THAT(second.added, IsEmpty());
  EXPECT_THAT(numbers(second.waiting), ElementsAre(1));
}

TEST_F(SchedulerStateTest, FcfsNamesTheLastAdmittedAsTheFirstVictim) {
  for (int i = 0; i < 3; ++i) submit_with_priority(-i);
  step({.admitted = {1, 2, 3}});
  EXPECT_THAT(numbers(next_step().victims), ElementsAre(3, 2, 1));
}

TEST_F(SchedulerStateTest, PreemptedSequencesWaitFirstInTheirOldOrder) {
  for (int i = 0; i < 4; ++i) submit({1, 2, 3});
  step({.admitted = {1, 2, 3}});
  step({.preempted = {3, 2}});
  const StepRequest third = next_step();
  EXPECT_THAT(numbers(third.running), ElementsAre(1));
  EXPECT_THAT(numbers(third.waiting), ElementsAre(2, 3, 4));
}

TEST_F(SchedulerStateTest, PriorityServesTheLowestValueFirstAndTiesByArrival) {
  config_.policy = SchedulingPolicy::priority;
  for (const int priority : {2, 0, 2, -1, 0}) submit_with_priority(priority);
  config_.max_num_seqs = 8;
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(4, 2, 5, 1));
}

TEST_F(SchedulerStateTest, PriorityPreemptsTheLeastImportantFirstAndTheLatestOfEquals) {
  config_.policy = SchedulingPolicy::priority;
  for (const int priority : {2, 0, 2, -1}) submit_with_priority(priority);
  step({.admitted = {4, 2, 1, 3}});
  EXPECT_THAT(numbers(next_step().victims), ElementsAre(3, 1, 2, 4));
}

TEST_F(SchedulerStateTest, WithPriorityPreemptedSequencesReturnToTheirPlace) {
  config_.policy = SchedulingPolicy::priority;
  submit_with_priority(5);
  submit_with_priority(5);
  step({.admitted = {1, 2}});
  submit_with_priority(0);
  submit_with_priority(5);
  step({.preempted = {2, 1}});
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(3, 1, 2, 4));
}

TEST_F(SchedulerStateTest, AMoreImportantNewRequestIsOfferedBeforeAKnownOne) {
  config_.policy = SchedulingPolicy::priority;
  config_.max_num_seqs = 1;
  submit_with_priority(3);
  EXPECT_THAT(numbers(step({}).waiting), ElementsAre(1));
  submit_with_priority(1);
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(2));
}

// -- ends

TEST_F(SchedulerStateTest, EndsAtMaxTokensAndTellsTheBlockManager) {
  const auto request = submit({1, 2}, {.max_tokens = 2});
  step({.admitted = {1}, .sampled = {{1, 7}}});
  EXPECT_FALSE(request->is_finished());
  step({.sampled = {{1, 8}}});
  EXPECT_EQ(request->reason, FinishReason::length);
  EXPECT_THAT(request->tokens, ElementsAre(7, 8));
  const StepRequest last = step({});
  EXPECT_THAT(numbers(last.ended), ElementsAre(1));
  EXPECT_FALSE(scheduler().next_step().has_value());
  EXPECT_EQ(scheduler().unfinished(), 0u);
}

TEST_F(SchedulerStateTest, EndsAtAnEndOfSequenceToken) {
  const auto request = submit({1, 2});
  step({.admitted = {1}, .sampled = {{1, kEos}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
  EXPECT_THAT(request->tokens, ElementsAre(kEos));
}

TEST_F(SchedulerStateTest, GoesOnAfterEndOfSequenceIfToldTo) {
  const auto request = submit({1, 2}, {.ignore_eos = true});
  step({.admitted = {1}, .sampled = {{1, kEos}}});
  EXPECT_FALSE(request->is_finished());
}

TEST_F(SchedulerStateTest, EndsAtAStopTokenAlsoWhereEndOfSequenceIsIgnored) {
  const auto request = submit({1, 2}, {.ignore_eos = true, .stop_token_ids = {50, kEos}});
  step({.admitted = {1}, .sampled = {{1, 49}}});
  EXPECT_FALSE(request->is_finished());
  step({.sampled = {{1, kEos}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
}

TEST_F(SchedulerStateTest, NothingButTheLengthEndsAnAnswerBeforeMinTokens) {
  const auto request =
      submit({1, 2}, {.max_tokens = 4, .stop_token_ids = {50}, .rules = {.min_tokens = 2}});
  step({.admitted = {1}, .sampled = {{1, 50}}});
  EXPECT_FALSE(request->is_finished());
  step({.sampled = {{1, kEos}}});
  EXPECT_EQ(request->reason, FinishReason::stop) << "it is the second";
  config_.max_model_len = 16;
  const auto full = submit({1, 2}, {.max_tokens = 1, .rules = {.min_tokens = 1}});
  step({.admitted = {2}, .sampled = {{2, 7}}});
  EXPECT_EQ(full->reason, FinishReason::length);
}

TEST_F(SchedulerStateTest, TheBlockManagerGetsWhatChangesLogitsAndWhereTheAnswerBegins) {
  submit({1, 2, 3}, {.rules = {.presence_penalty = 1}}, {7, 8});
  submit({1, 2, 3});
  const StepRequest request = next_step();
  ASSERT_EQ(request.added.size(), 2u);
  EXPECT_NE(request.added[0].logits, nullptr);
  EXPECT_EQ(request.added[0].prompt_tokens, 3u);
  EXPECT_EQ(request.added[0].tokens.size(), 5u);
  EXPECT_EQ(request.added[1].logits, nullptr);
}

TEST_F(SchedulerStateTest, RulesAboutTokensThatTheModelDoesNotHaveAreRefused) {
  const auto request = submit({1, 2}, {.rules = {.logit_bias = {{100, 1}}}});
  EXPECT_EQ(request->reason, FinishReason::error);
  EXPECT_THAT(request->error.text, HasSubstr("logit_bias: token id 100 is not in the model's"));
}

TEST_F(SchedulerStateTest, EndsWhenPromptAndOutputFillTheModel) {
  config_.max_model_len = 4;
  const auto request = submit({1, 2, 3});
  step({.admitted = {1}, .sampled = {{1, 7}}});
  EXPECT_EQ(request->reason, FinishReason::length);
}

TEST_F(SchedulerStateTest, AStopTokenAsTheLastAllowedOneCountsAsStop) {
  const auto request = submit({1, 2}, {.max_tokens = 1, .stop_token_ids = {50}});
  step({.admitted = {1}, .sampled = {{1, 50}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
}

class SchedulerStateWithText : public SchedulerStateTest {
 protected:
  SchedulerStateWithText() {
    config_.tokenizer = &tokenizer_;
    config_.vocab_size = 264;
    config_.eos_token_ids = {262};
    config_.max_model_len = 64;
  }
  Tokenizer tokenizer_ = parse_tokenizer(small_byte_level(), "test").value();
};

TEST_F(SchedulerStateWithText, EndsBeforeAStopStringThatCrossesTokens) {
  const auto request = submit({1}, {.stop = {"low"}});
  step({.admitted = {1}, .sampled = {{1, 259}}});  // "hello"
  step({.sampled = {{1, 'm'}}});
  EXPECT_FALSE(request->is_finished());
  step({.sampled = {{1, 'l'}}});
  step({.sampled = {{1, 'o'}}});
  EXPECT_FALSE(request->is_finished());
  step({.sampled = {{1, 'w'}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
  EXPECT_EQ(request->text, "hellom");
  EXPECT_EQ(request->text_bytes, 6u);
  EXPECT_EQ(request->tokens.size(), 5u);
}

TEST_F(SchedulerStateWithText, TextHeldBackForAStopStringComesWithTheLastToken) {
  const auto request = submit({1}, {.max_tokens = 2, .stop = {"ox"}});
  step({.admitted = {1}, .sampled = {{1, 259}}});
  EXPECT_EQ(request->text, "hell");
  step({.sampled = {{1, 'o'}}});
  EXPECT_EQ(request->reason, FinishReason::length);
  EXPECT_EQ(request->text, "helloo");
  EXPECT_EQ(request->text_bytes, 6u);
}

TEST_F(SchedulerStateWithText, TheEndOfSequenceTokenHasNoText) {
  const auto request = submit({1});
  step({.admitted = {1}, .sampled = {{1, 259}}});
  step({.sampled = {{1, 262}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
  EXPECT_EQ(request->text, "hello");
}

// -- refusals

TEST_F(SchedulerStateTest, RefusesAnEmptyPrompt) {
  const auto request = submit({});
  EXPECT_EQ(request->reason, FinishReason::error);
  EXPECT_EQ(request->error.code, Errc::bad_argument);
  EXPECT_THAT(request->error.text, HasSubstr("prompt is empty"));
  EXPECT_EQ(request->flushes, 1u);
  EXPECT_FALSE(scheduler().next_step().has_value());
}

TEST_F(SchedulerStateTest, RefusesAPromptThatLeavesNoRoomForOutput) {
  EXPECT_FALSE(submit(std::vector<TokenId>(15, 1))->is_finished());
  const auto request = submit(std::vector<TokenId>(16, 1));
  EXPECT_EQ(request->error.code, Errc::never_fits);
  EXPECT_THAT(request->error.text, HasSubstr("16 tokens"));
  EXPECT_THAT(request->error.text, HasSubstr("max-model-len"));
}

TEST_F(SchedulerStateTest, RefusesAPromptWithMoreTokensThanItsScoresHaveRoomFor) {
  for (const std::size_t room : {2u, 3u}) {
    const auto recording = std::make_shared<Recording>();
    Submission submission{
        {2, static_cast<std::uint32_t>(room)}, {1, 2, 3}, {}, {.prompt_logprobs = 0}};
    submission.sink = std::make_shared<RecordingSink>(recording);
    submission.most_scored = room;
    scheduler().submit(std::move(submission));
    EXPECT_EQ(recording->error.code, room == 2 ? Errc::bad_argument : Errc::none);
  }
}

TEST_F(SchedulerStateTest, RefusesTokensOutsideTheVocabularyInPromptAndJournal) {
  for (const TokenId token : {-1, 100, 1 << 30}) {
    const auto request = submit({1, token});
    EXPECT_EQ(request->error.code, Errc::bad_argument);
    EXPECT_THAT(request->error.text, HasSubstr(std::to_string(token)));
    EXPECT_EQ(submit({1}, {}, {2, token})->error.code, Errc::bad_argument);
  }
  EXPECT_FALSE(submit({0, 99})->is_finished());
}

TEST_F(SchedulerStateTest, ARequestTheBlockManagerRejectsEndsWithItsError) {
  const auto request = submit({1, 2});
  next_step();
  StepDone done;
  done.outcome.rejected.push_back({SeqId{1}, Error{Errc::never_fits, "too large"}});
  scheduler().complete(done);
  EXPECT_EQ(request->reason, FinishReason::error);
  EXPECT_EQ(request->error.text, "too large");
  EXPECT_THAT(numbers(next_step().ended), ElementsAre(1));
}

// -- too much waits

TEST_F(SchedulerStateTest, WhatIsMoreThanTheQueueTakesIsRefusedAndToldWhenToComeAgain) {
  SlotCounters counters{};
  config_.counters = &counters;
  config_.max_queued_tokens = 10;
  EXPECT_FALSE(submit_new({1, 2, 3, 4, 5, 6})->is_finished());
  EXPECT_FALSE(submit_new({1, 2, 3, 4})->is_finished());
  const auto refused = submit_new({1});
  EXPECT_EQ(refused->error.code, Errc::overloaded);
  EXPECT_THAT(refused->error.text, HasSubstr("10 tokens (max-queued-tokens); try again in"));
  EXPECT_EQ(refused->error.retry_after, DrainRate::kUnknown);
  EXPECT_EQ(refused->flushes, 1u);
  step({.admitted = {1}});
  EXPECT_FALSE(submit_new({1})->is_finished()) << "six tokens have left the queue";
  EXPECT_EQ(counters["overloaded_requests"].load(), 1u);
}

TEST_F(SchedulerStateTest, ADomainMayHaveOneRequestThatWaitsHoweverMuchOthersHave) {
  config_.max_queued_tokens = 10;
  submit_new({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_FALSE(submit_new({1, 2, 3, 4, 5, 6}, DomainId{7})->is_finished());
  EXPECT_EQ(submit_new({1}, DomainId{7})->error.code, Errc::overloaded);
}

TEST_F(SchedulerStateTest, AFullQueueTakesWhatIsWithinADomainsPartOfIt) {
  config_.max_queued_tokens = 12;
  for (int i = 0; i < 4; ++i) submit_new({1, 2, 3}, DomainId{1});
  EXPECT_EQ(submit_new({1}, DomainId{1})->error.code, Errc::overloaded);
  const DomainShare more{.weight = 2};  // so 8 of 12 are its part
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(submit_new({1, 2, 3}, DomainId{2}, more)->is_finished());
  EXPECT_EQ(submit_new({1, 2, 3}, DomainId{2}, more)->error.code, Errc::overloaded);
  EXPECT_FALSE(submit_new({1, 2}, DomainId{2}, more)->is_finished());
}

TEST_F(SchedulerStateTest, APromptLongerThanTheLimitIsServedIfNothingOfItsDomainWaits) {
  config_.max_queued_tokens = 2;
  EXPECT_FALSE(submit_new({1, 2, 3, 4, 5})->is_finished());
}

TEST_F(SchedulerStateTest, ADomainsShareOfTheQueueIsItsOwn) {
  const DomainShare share{.max_queued_tokens = 5};
  submit_new({1, 2, 3, 4}, DomainId{1}, share);
  const auto refused = submit_new({1, 2}, DomainId{1}, share);
  EXPECT_EQ(refused->error.code, Errc::overloaded);
  EXPECT_THAT(refused->error.text, HasSubstr("of this domain"));
  EXPECT_FALSE(submit_new({1}, DomainId{1}, share)->is_finished());
  submit_new({1, 2, 3, 4, 5, 6}, DomainId{2});
  EXPECT_FALSE(submit_new({1, 2, 3, 4, 5, 6}, DomainId{2})->is_finished());
}

TEST_F(SchedulerStateTest, WhatAnEngineHadAcceptedIsNotRefused) {
  config_.max_queued_tokens = 4;
  submit_new({1, 2, 3, 4});
  EXPECT_FALSE(submit({1, 2, 3})->is_finished());
  EXPECT_FALSE(submit({1, 2, 3}, {}, {7})->is_finished());
}

TEST_F(SchedulerStateTest, TheHintFollowsHowFastTheQueueWas) {
  config_.max_queued_tokens = 4;
  config_.max_num_seqs = 1;
  submit_new({1, 2, 3, 4});
  next_step();
  StepDone done;
  done.outcome.admitted.push_back({SeqId{1}, 0});
  done.outcome.scheduled_tokens = 4;
  done.times.computing = 2;
  scheduler().complete(done);
  submit_new({1, 2, 3, 4});
  EXPECT_EQ(submit_new({1})->error.retry_after, std::chrono::milliseconds(2000));
}

// -- domains

TEST_F(SchedulerStateTest, DomainsTakeTurnsAndAnswersCount) {
  config_.max_num_seqs = 1;
  for (int i = 0; i < 3; ++i) submit_new({1, 2, 3}, DomainId{1});
  for (int i = 0; i < 3; ++i) submit_new({1, 2, 3}, DomainId{2});
  EXPECT_THAT(numbers(step({.admitted = {1}, .sampled = {{1, 7}}}).waiting), ElementsAre(1));
  step({.sampled = {{1, kEos}}});
  EXPECT_THAT(numbers(step({.admitted = {4}, .sampled = {{4, kEos}}}).waiting), ElementsAre(4));
  EXPECT_THAT(numbers(step({.admitted = {5}, .sampled = {{5, 7}}}).waiting), ElementsAre(5))
      << "four tokens against five";
}

TEST_F(SchedulerStateTest, TokensOfTheCacheAreNotCharged) {
  config_.max_num_seqs = 1;
  for (int i = 0; i < 2; ++i) submit_new({1, 2, 3, 4}, DomainId{1});
  for (int i = 0; i < 2; ++i) submit_new({1, 2, 3, 4}, DomainId{2});
  step({.admitted = {1}, .sampled = {{1, kEos}}});
  EXPECT_THAT(numbers(step({.admitted = {3}, .sampled = {{3, kEos}}, .cached = 3}).waiting),
              ElementsAre(3));
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(4)) << "two tokens against five";
}

TEST_F(SchedulerStateTest, ADomainRunsNoMoreThanItsShareAndThatAllTheTime) {
  const DomainShare share{.max_num_seqs = 2};
  for (int i = 0; i < 6; ++i) submit_new({1, 2}, DomainId{1}, share);
  EXPECT_THAT(numbers(step({.admitted = {1, 2}}).waiting), ElementsAre(1, 2));
  EXPECT_THAT(numbers(step({.sampled = {{1, kEos}}}).waiting), IsEmpty());
  EXPECT_THAT(numbers(step({.admitted = {3}, .preempted = {2}}).waiting), ElementsAre(3));
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(2)) << "what was preempted goes first";
}

TEST_F(SchedulerStateTest, WithPrioritiesTheDomainThatWasServedMostIsPreemptedFirst) {
  config_.policy = SchedulingPolicy::priority;
  submit_new({1, 2, 3, 4, 5, 6}, DomainId{1}, {}, -1000);
  submit_new({1, 2}, DomainId{2}, {}, 5);
  submit_new({1, 2}, DomainId{2}, {}, 9);
  step({.admitted = {1, 2, 3}});
  EXPECT_THAT(numbers(next_step().victims), ElementsAre(1, 3, 2));
}

// -- aborts

TEST_F(SchedulerStateTest, AnAbortOfAnUnknownRequestIsIgnored) {
  abort(7);
  scheduler().abort({{}, {4}});
  EXPECT_FALSE(scheduler().next_step().has_value());
}

TEST_F(SchedulerStateTest, AnAbortOfARequestTheBlockManagerDoesNotKnowNeedsNoStep) {
  const auto request = submit({1, 2});
  abort(1);
  EXPECT_EQ(request->reason, FinishReason::abort);
  EXPECT_FALSE(scheduler().next_step().has_value());
}

TEST_F(SchedulerStateTest, AnAbortOfAWaitingRequestTellsTheBlockManagerThatKnowsIt) {
  const auto request = submit({1, 2});
  step({});
  abort(1);
  EXPECT_EQ(request->reason, FinishReason::abort);
  const StepRequest next = next_step();
  EXPECT_THAT(numbers(next.ended), ElementsAre(1));
  EXPECT_THAT(next.waiting, IsEmpty());
}

TEST_F(SchedulerStateTest, AnAbortBetweenStepsEndsARunningRequestAtOnce) {
  const auto request = submit({1, 2});
  step({.admitted = {1}, .sampled = {{1, 7}}});
  abort(1);
  EXPECT_EQ(request->reason, FinishReason::abort);
  const StepRequest next = next_step();
  EXPECT_THAT(numbers(next.ended), ElementsAre(1));
  EXPECT_THAT(next.running, IsEmpty());
}

TEST_F(SchedulerStateTest, AnAbortDuringAStepWaitsForItAndDropsItsToken) {
  const auto request = submit({1, 2});
  const auto other = submit({1, 2});
  step({.admitted = {1, 2}, .sampled = {{1, 7}, {2, 7}}});
  next_step();
  abort(1);
  EXPECT_FALSE(request->is_finished());
  complete({.sampled = {{1, 8}, {2, 8}}});
  EXPECT_EQ(request->reason, FinishReason::abort);
  EXPECT_THAT(request->tokens, ElementsAre(7));
  EXPECT_THAT(other->tokens, ElementsAre(7, 8));
  const StepRequest next = next_step();
  EXPECT_THAT(numbers(next.ended), ElementsAre(1));
  EXPECT_THAT(numbers(next.running), ElementsAre(2));
}

TEST_F(SchedulerStateTest, AnAbortDuringTheStepThatAdmitsOrPreemptsEndsTheRequest) {
  const auto admitted = submit({1, 2});
  next_step();
  abort(1);
  complete({.admitted = {1}, .sampled = {{1, 7}}});
  EXPECT_EQ(admitted->reason, FinishReason::abort);

  const auto preempted = submit({1, 2});
  step({.admitted = {2}});
  next_step();
  abort(2);
  complete({.preempted = {2}});
  EXPECT_EQ(preempted->reason, FinishReason::abort);
  EXPECT_THAT(numbers(next_step().ended), ElementsAre(2));
  EXPECT_EQ(scheduler().unfinished(), 0u);
}

TEST_F(SchedulerStateTest, AnAbortDuringTheStepThatRejectsLeavesTheError) {
  const auto request = submit({1, 2});
  next_step();
  abort(1);
  StepDone done;
  done.outcome.rejected.push_back({SeqId{1}, Error{Errc::never_fits, "too large"}});
  scheduler().complete(done);
  EXPECT_EQ(request->reason, FinishReason::error);
}

TEST_F(SchedulerStateTest, AClosedChannelEndsItsRequestsAndNoOthers) {
  const auto first = submit({1}, {}, {}, 4);
  const auto second = submit({1}, {}, {}, 5);
  const auto third = submit({1}, {}, {}, 4);
  scheduler().abort({{}, {4}});
  EXPECT_EQ(first->reason, FinishReason::abort);
  EXPECT_EQ(third->reason, FinishReason::abort);
  EXPECT_FALSE(second->is_finished());
}

TEST_F(SchedulerStateTest, EndsInTheMiddleOfTheQueueKeepTheOrderOfTheOthers) {
  for (const auto policy : {SchedulingPolicy::fcfs, SchedulingPolicy::priority}) {
    config_.policy = policy;
    config_.max_num_seqs = 8;
    SchedulerState state(config_);
    const auto put = [&](std::uint32_t slot) {
      state.submit(
          {{1, slot}, {1}, {}, {}, std::make_shared<RecordingSink>(std::make_shared<Recording>())});
    };
    for (std::uint32_t slot = 1; slot <= 6; ++slot) put(slot);
    state.next_step();
    state.complete({1, {.admitted = {{SeqId{1}}, {SeqId{2}}, {SeqId{3}}}}, {}, {}});
    state.next_step();
    state.complete({2, {.preempted = {SeqId{3}, SeqId{2}}}, {}, {}});
    state.abort({{{1, 5}, {1, 2}}, {}});
    put(7);
    EXPECT_THAT(numbers(state.next_step()->waiting), ElementsAre(3, 4, 6, 7));
  }
}

/// With a search through the queue for each of them, this takes minutes.
TEST_F(SchedulerStateTest, AHundredThousandRequestsOfAClientThatIsGoneEndAtOnce) {
  for (const auto policy : {SchedulingPolicy::fcfs, SchedulingPolicy::priority}) {
    config_.policy = policy;
    SchedulerState state(config_);
    const auto recording = std::make_shared<Recording>();
    const auto put = [&](RequestKey key, std::shared_ptr<OutputSink> sink) {
      // Falling priorities: each goes before all that wait.
      const auto priority = -static_cast<std::int32_t>(key.slot);
      state.submit({key, {1}, {}, {.priority = priority}, std::move(sink)});
    };
    struct Nothing : OutputSink {
      void room(const RoomStatus&) override {}
      bool read() override { return true; }
      void wait() override {}
      bool start() override { return true; }
      void preempted() override {}
      void note(const RequestTimes&) override {}
      void admitted(const RequestStats&) override {}
      void prompt(std::size_t, std::span<const PromptToken>) override {}
      void token(const GeneratedToken&, std::string_view) override {}
      bool finished(FinishReason, const Error&, const RequestStats&, std::size_t) override {
        return true;
      }
      void flush() override {}
    };
    for (std::uint32_t slot = 0; slot < 100'000; ++slot)
      put({9, slot}, std::make_shared<Nothing>());
    put({1, 1}, std::make_shared<RecordingSink>(recording));
    state.abort({{}, {9}});
    EXPECT_EQ(state.unfinished(), 1u);
    EXPECT_THAT(numbers(state.next_step()->waiting), ElementsAre(100'001));
    EXPECT_FALSE(recording->is_finished());
  }
}

// -- questions

/// A request that only asks, in slot n.
class SchedulerStateWithQuestions : public SchedulerStateTest {
 protected:
  std::shared_ptr<Recording> ask(std::vector<TokenId> prompt, std::uint32_t slot,
                                 bool is_new = true, bool is_lost = false) {
    auto recording = std::make_shared<Recording>();
    recording->is_lost = is_lost;
    Submission submission{{2, slot}, std::move(prompt), {}, {.only_asks = true}, {}};
    submission.sink = std::make_shared<RecordingSink>(recording);
    submission.is_new = is_new;
    scheduler().submit(std::move(submission));
    scheduler().flush();
    return recording;
  }
  /// Sends all answers that the scheduler waits for.
  void answer(const Expected<RoomStatus>& room) {
    const auto questions = scheduler().next_questions();
    ASSERT_TRUE(questions);
    Answers answers;
    for (const Question& question : questions->asked) answers.given.push_back({question.seq, room});
    scheduler().answer(answers);
  }
};

TEST_F(SchedulerStateWithQuestions, AQuestionIsNotQueuedAndEndsWithItsAnswer) {
  const auto asked = ask({1, 2, 3}, 1);
  EXPECT_FALSE(scheduler().next_step().has_value());
  EXPECT_EQ(scheduler().unfinished(), 1u) << "an engine that is drained answers it";
  EXPECT_FALSE(asked->is_finished());
  answer(RoomStatus{AllocStatus::ok, 4, 9, 2});
  EXPECT_EQ(asked->reason, FinishReason::room);
  EXPECT_EQ(asked->room.status, AllocStatus::ok);
  EXPECT_EQ(asked->room.needed_blocks, 4u);
  EXPECT_EQ(asked->room.available_blocks, 9u);
  EXPECT_EQ(asked->stats.prompt_tokens, 3u);
  EXPECT_EQ(asked->stats.cached_tokens, 2u);
  EXPECT_EQ(asked->flushes, 1u);
  EXPECT_EQ(scheduler().unfinished(), 0u);
  EXPECT_FALSE(scheduler().next_questions());
  EXPECT_FALSE(scheduler().next_step().has_value());
}

TEST_F(SchedulerStateWithQuestions, TheBlockManagerLearnsHowManyRun) {
  submit({1, 2});
  step({.admitted = {1}});
  ask({1, 2}, 1);
  EXPECT_EQ(scheduler().next_questions()->running, 1u);
}

TEST_F(SchedulerStateWithQuestions, WhatNeverFitsEndsWithTheErrorOfARequest) {
  const auto asked = ask({1, 2}, 1);
  answer(failure(Errc::never_fits, "too long"));
  EXPECT_EQ(asked->reason, FinishReason::error);
  EXPECT_EQ(asked->error.code, Errc::never_fits);
  EXPECT_EQ(asked->error.text, "too long");
  const auto longer = ask(std::vector<TokenId>(16, 1), 2);
  EXPECT_EQ(longer->error.code, Errc::never_fits) << "than the model: nobody else is asked";
  EXPECT_FALSE(scheduler().next_questions());
}

TEST_F(SchedulerStateWithQuestions, WhereARequestWouldBeRefusedBecauseTooMuchWaitsItIsLater) {
  config_.max_queued_tokens = 4;
  submit({1, 2, 3});
  const auto short_one = ask({1}, 1), long_one = ask({1, 2}, 2);
  answer(RoomStatus{AllocStatus::ok, 1, 9, 0});
  answer(RoomStatus{AllocStatus::ok, 1, 9, 0});
  EXPECT_EQ(short_one->room.status, AllocStatus::ok);
  EXPECT_EQ(long_one->room.status, AllocStatus::later);
}

TEST_F(SchedulerStateWithQuestions, OneThatAnotherEngineHasIsForgotten) {
  const auto lost = ask({1, 2, 3}, 1, true, true);
  EXPECT_EQ(scheduler().unfinished(), 0u);
  EXPECT_FALSE(scheduler().next_questions());
  EXPECT_FALSE(lost->is_finished());
}

// -- requests that other engines take

TEST_F(SchedulerStateTest, ALostRequestIsForgottenWithoutAWord) {
  const auto lost = submit({1, 2, 3}), kept = submit({1, 2, 3});
  lost->is_lost = true;
  step({.admitted = {2}, .sampled = {{2, 5}}, .lost = {1}});
  EXPECT_FALSE(lost->is_finished());
  EXPECT_EQ(scheduler().unfinished(), 1u);
  const StepRequest after = next_step();
  EXPECT_THAT(numbers(after.ended), ElementsAre(1)) << "the block manager forgets it, too";
  EXPECT_THAT(numbers(after.running), ElementsAre(2));
  EXPECT_THAT(after.waiting, IsEmpty());
}

TEST_F(SchedulerStateTest, TheEndOfALostRequestIsNotToldToItsClient) {
  const auto lost = submit({1, 2, 3});
  lost->is_lost = true;
  abort(1);
  EXPECT_FALSE(lost->is_finished());
  EXPECT_EQ(scheduler().unfinished(), 0u);
}

/// The engine that took the first has ended it, and the client has submitted again in its slot.
TEST_F(SchedulerStateTest, ASlotsNextRequestTakesThePlaceOfALostOne) {
  for (const bool is_out : {false, true}) {
    SchedulerState state(config_);
    const auto put = [&](TokenId token, bool is_lost) {
      const auto recording = std::make_shared<Recording>();
      recording->is_lost = is_lost;
      state.submit({{1, 1}, {token}, {}, {}, std::make_shared<RecordingSink>(recording)});
      return recording;
    };
    const auto first = put(7, true);
    if (is_out) {
      ASSERT_THAT(numbers(state.next_step()->waiting), ElementsAre(1));
    }
    const auto second = put(8, false);
    if (is_out) state.complete({1, {.lost = {SeqId{1}}}, {}, {}});
    state.abort({{{1, 1}}, {}});
    EXPECT_FALSE(first->is_finished());
    EXPECT_EQ(second->reason, FinishReason::abort);
    EXPECT_EQ(state.unfinished(), 0u);
  }
}

TEST_F(SchedulerStateTest, AJournalOfALostRequestIsNotReplayed) {
  const auto lost = std::make_shared<Recording>();
  lost->is_lost = true;
  scheduler().submit({{1, 1}, {1, 2}, {7, 8}, {}, std::make_shared<RecordingSink>(lost)});
  EXPECT_THAT(lost->tokens, IsEmpty());
  EXPECT_EQ(scheduler().unfinished(), 0u);
}

TEST_F(SchedulerStateTest, TheLoadIsToldWithEachSubmissionAndStep) {
  std::vector<EngineLoad> told;
  std::uint32_t counted = 0;
  bool is_in_step = false;
  config_.tell_load = [&](EngineLoad load, std::uint32_t submissions, bool step_is_out) {
    told.push_back(load);
    counted = submissions;
    is_in_step = step_is_out;
  };
  for (int i = 0; i < 3; ++i) submit(std::vector<TokenId>(15, 1));
  EXPECT_THAT(told, ElementsAre(EngineLoad{3, 15}, EngineLoad{2, 30}, EngineLoad{1, 45}));
  EXPECT_EQ(counted, 3u);
  told.clear();
  step({.admitted = {1, 2}, .sampled = {{1, 5}, {2, 5}}});  // both end: they are full
  EXPECT_THAT(told, ElementsAre(EngineLoad{1, 45}, EngineLoad{3, 15}));
  EXPECT_FALSE(is_in_step);
  abort(3);
  EXPECT_THAT(told.back(), (EngineLoad{4, 0}));
  submit(std::vector<TokenId>(15, 1));
  EXPECT_FALSE(is_in_step);
  next_step();
  EXPECT_TRUE(is_in_step) << "nothing may be sent for as long as it hangs";
  submit(std::vector<TokenId>(15, 1));
  EXPECT_TRUE(is_in_step) << "who is sent something meanwhile has done nothing";
}

// -- guesses

/// What the next step guesses of a sequence; nothing = the step has no guess at it.
std::optional<std::vector<TokenId>> drafts_of(const StepRequest& step, std::uint64_t seq) {
  for (const Drafts& drafts : step.drafts)
    if (drafts.seq.value == seq) return drafts.tokens;
  return std::nullopt;
}

TEST_F(SchedulerStateTest, WhatFollowedTheLastTokensEarlierIsGuessedOnceTheyAreSampled) {
  config_.lookup = {.drafts = 3, .longest = 2, .shortest = 2};
  submit({1, 2, 3, 4, 5, 1});
  submit({1, 2, 3});
  EXPECT_THAT(next_step().drafts, IsEmpty()) << "of a prompt nothing is sampled yet";
  complete({.admitted = {1, 2}, .sampled = {{1, 2}}});
  const StepRequest second = next_step();
  EXPECT_EQ(drafts_of(second, 1), (std::vector<TokenId>{3, 4, 5}));
  EXPECT_FALSE(drafts_of(second, 2)) << "its prompt is still being computed";
  complete({.sampled = {{2, 9}}});
  EXPECT_THAT(next_step().drafts, IsEmpty()) << "guessed once";
}

TEST_F(SchedulerStateTest, NothingIsGuessedUnlessItIsWanted) {
  submit({1, 2, 3, 4, 5, 1});
  step({.admitted = {1}, .sampled = {{1, 2}}});
  EXPECT_THAT(next_step().drafts, IsEmpty());
}

TEST_F(SchedulerStateTest, NoGuessGoesBehindTheLastTokenThatARequestMayHave) {
  config_.lookup = {.drafts = 5, .longest = 2, .shortest = 2};
  submit({1, 2, 3, 4, 5, 1}, {.max_tokens = 4});
  submit({6, 7, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 6}, {.max_tokens = 40});
  submit({1, 2, 3, 4, 5, 1}, {.max_tokens = 2});
  step({.admitted = {1, 2, 3}, .sampled = {{1, 2}, {2, 7}, {3, 2}}});
  const StepRequest second = next_step();
  EXPECT_EQ(drafts_of(second, 1), (std::vector<TokenId>{3, 4})) << "and one is sampled behind them";
  EXPECT_EQ(drafts_of(second, 2), (std::vector<TokenId>{8})) << "the model's 16 tokens";
  EXPECT_FALSE(drafts_of(second, 3)) << "the last one is sampled now";
}

TEST_F(SchedulerStateTest, AStepMayGiveSeveralTokensAndWhatIsBehindTheEndIsDropped) {
  config_.lookup = {.drafts = 3, .longest = 2, .shortest = 2};
  const auto stops = submit({1, 2, 3}, {.max_tokens = 9});
  const auto goes_on = submit({1, 2, 3}, {.max_tokens = 9});
  step({.admitted = {1, 2}, .sampled = {{1, 4}, {2, 4}}});
  step({.sampled = {{1, 5}, {1, kEos}, {1, 6}, {2, 7}, {2, 8}}});
  EXPECT_THAT(stops->tokens, ElementsAre(4, 5, kEos));
  EXPECT_EQ(stops->reason, FinishReason::stop);
  EXPECT_THAT(goes_on->tokens, ElementsAre(4, 7, 8));
  EXPECT_THAT(numbers(next_step().ended), ElementsAre(1));
}

TEST_F(SchedulerStateTest, OfAPreemptedOrEndedRequestNothingIsGuessed) {
  config_.lookup = {.drafts = 3, .longest = 2, .shortest = 2};
  for (int i = 0; i < 2; ++i) submit({1, 2, 3, 4, 5, 1});
  step({.admitted = {1, 2}, .sampled = {{1, 2}, {2, 2}}});
  step({.sampled = {{1, 3}}, .preempted = {2}});
  abort(1);
  EXPECT_THAT(next_step().drafts, IsEmpty());
}

// -- journals

TEST_F(SchedulerStateTest, AJournalCountsAsGeneratedAndGenerationGoesOnAfterIt) {
  const auto request = submit({1, 2}, {.max_tokens = 4}, {7, 8, 9});
  EXPECT_THAT(request->tokens, ElementsAre(7, 8, 9));
  const StepRequest first = step({.admitted = {1}, .sampled = {{1, 10}}});
  EXPECT_THAT(first.added.at(0).tokens, ElementsAre(1, 2, 7, 8, 9));
  EXPECT_EQ(request->reason, FinishReason::length);
  EXPECT_THAT(request->tokens, ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(request->stats.prompt_tokens, 2u);
}

TEST_F(SchedulerStateTest, AJournalThatIsCompleteEndsTheRequestWithoutAStep) {
  EXPECT_EQ(submit({1, 2}, {.max_tokens = 3}, {7, 8, 9})->reason, FinishReason::length);
  EXPECT_EQ(submit({1, 2}, {}, {7, kEos})->reason, FinishReason::stop);
  EXPECT_EQ(submit({1, 2}, {.stop_token_ids = {8}}, {7, 8})->reason, FinishReason::stop);
  EXPECT_EQ(submit(std::vector<TokenId>(14, 1), {}, {7, 8})->reason, FinishReason::length);
  EXPECT_FALSE(scheduler().next_step().has_value());
  EXPECT_EQ(scheduler().unfinished(), 0u);
}

TEST_F(SchedulerStateTest, TokensAfterTheEndOfAJournaledRequestAreLeftOut) {
  const auto request = submit({1, 2}, {}, {7, kEos, 8});
  EXPECT_THAT(request->tokens, ElementsAre(7, kEos));
}

TEST_F(SchedulerStateWithText, AStopStringIsFoundAcrossTheEndOfAJournal) {
  const auto request = submit({1}, {.stop = {"lo!"}}, {258});  // "hell"
  EXPECT_EQ(request->text, "he");
  step({.admitted = {1}, .sampled = {{1, 'o'}}});
  step({.sampled = {{1, '!'}}});
  EXPECT_EQ(request->reason, FinishReason::stop);
  EXPECT_EQ(request->text, "hel");
  EXPECT_EQ(submit({1}, {.stop = {"ell"}}, {258})->reason, FinishReason::stop);
}

/// Other requests must not wait until all journals have been replayed.
TEST_F(SchedulerStateTest, LongJournalsAreReplayedInPieces) {
  constexpr std::uint32_t kPiece = SchedulerState::kReplayedAtOnce;
  config_.max_model_len = 4 * kPiece;
  const GenerationParams params{.max_tokens = 4 * kPiece};
  const auto first = submit({1}, params, std::vector<TokenId>(2 * kPiece, 7));
  const auto second = submit({1}, params, std::vector<TokenId>(10, 7));
  const auto aborted = submit({1}, params, std::vector<TokenId>(3 * kPiece, 7));
  submit({1});
  EXPECT_EQ(first->tokens.size(), kPiece);
  EXPECT_TRUE(scheduler().has_journals());
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(4)) << "a new request need not wait";
  scheduler().replay_some();
  EXPECT_EQ(first->tokens.size(), 2 * kPiece);
  complete({});
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(4, 1));
  complete({});
  scheduler().replay_some();
  EXPECT_EQ(second->tokens.size(), 10u);
  EXPECT_EQ(aborted->tokens.size(), kPiece - 10);
  abort(3);
  EXPECT_EQ(aborted->reason, FinishReason::abort);
  scheduler().replay_some();
  EXPECT_FALSE(scheduler().has_journals());
  EXPECT_THAT(numbers(next_step().waiting), ElementsAre(4, 1, 2));
  EXPECT_EQ(aborted->tokens.size(), kPiece - 10);
}

// -- statistics

TEST_F(SchedulerStateTest, StatsHaveTheFirstAdmissionsCachedTokensAndCountPreemptions) {
  const auto request = submit({1, 2, 3, 4, 5});
  step({.admitted = {1}, .sampled = {{1, 7}}, .cached = 4});
  EXPECT_EQ(request->stats.prompt_tokens, 5u);
  EXPECT_EQ(request->stats.cached_tokens, 4u);
  step({.preempted = {1}});
  step({.admitted = {1}, .sampled = {{1, kEos}}, .cached = 5});
  EXPECT_EQ(request->admissions, 1u);
  EXPECT_EQ(request->stats.cached_tokens, 4u);
  EXPECT_EQ(request->stats.preemptions, 1u);
}

TEST_F(SchedulerStateTest, CachedTokensOfAJournalDoNotCountBeyondThePrompt) {
  const auto request = submit({1, 2, 3}, {}, {7, 8, 9});
  step({.admitted = {1}, .cached = 4});
  EXPECT_EQ(request->stats.cached_tokens, 3u);
}

TEST_F(SchedulerStateTest, AFailoverKeepsTheFirstAdmissionsStats) {
  auto recording = std::make_shared<Recording>();
  Submission submission{
      {1, 1}, {1, 2, 3, 4, 5}, {7}, {}, std::make_shared<RecordingSink>(recording, 1)};
  recording->tokens = {7};
  submission.earlier_admission = RequestStats{5, 0, 2};
  scheduler().submit(std::move(submission));
  const StepRequest request = step({.admitted = {1}, .sampled = {{1, kEos}}, .cached = 5});
  EXPECT_TRUE(request.added.at(0).is_counted);
  EXPECT_EQ(recording->admissions, 0u) << "the slot already has the first admission's numbers";
  EXPECT_EQ(recording->stats.prompt_tokens, 5u);
  EXPECT_EQ(recording->stats.cached_tokens, 0u) << "the first admission found no cached tokens";
  EXPECT_EQ(recording->stats.preemptions, 2u);
}

TEST_F(SchedulerStateTest, AClientCannotClaimMoreCachedTokensThanItsPromptHas) {
  auto recording = std::make_shared<Recording>();
  Submission submission{{1, 1}, {1, 2, 3}, {}, {}, std::make_shared<RecordingSink>(recording)};
  submission.earlier_admission = RequestStats{900, 800, 0};
  scheduler().submit(std::move(submission));
  step({.admitted = {1}, .sampled = {{1, kEos}}});
  EXPECT_EQ(recording->stats.prompt_tokens, 3u);
  EXPECT_EQ(recording->stats.cached_tokens, 3u);
}

TEST_F(SchedulerStateTest, IsStarvedWhenAStepDoesNothingAlthoughRequestsWait) {
  submit({1, 2, 3});
  step({});
  EXPECT_TRUE(scheduler().is_starved());
  step({.admitted = {1}, .sampled = {{1, 7}}});
  EXPECT_FALSE(scheduler().is_starved());
  step({.preempted = {1}});
  EXPECT_FALSE(scheduler().is_starved());
  abort(1);
  step({});
  EXPECT_FALSE(scheduler().is_starved());
}

TEST_F(SchedulerStateTest, ReadersAreWokenAfterEveryStepThatHasOutputForThem) {
  const auto request = submit({1, 2, 3});
  const auto other = submit({1, 2, 3});
  const std::uint32_t before = other->flushes;
  step({.admitted = {1}, .sampled = {{1, 7}}});
  EXPECT_GE(request->flushes, 1u);
  EXPECT_EQ(other->flushes, before);
}

}  // namespace
}  // namespace kvhive::testing
