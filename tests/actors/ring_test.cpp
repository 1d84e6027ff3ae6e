// Tests the actors around the states under CAF's deterministic scheduler: one thread, virtual time.

#include "actors/ring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <caf/scheduler/test_coordinator.hpp>
#include <future>

#include "tests/actors/plain_ring.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

/// An oracle that counts its steps.
class CountingRunner : public StepRunner {
 public:
  CountingRunner(const PoolMemory& memory, ProcessSlot slot, std::size_t& steps)
      : oracle_(memory, slot), steps_(steps) {}
  Expected<StepResults> run(const StepPlan& plan) override {
    ++steps_;
    return oracle_.run(plan);
  }

 private:
  OracleRunner oracle_;
  std::size_t& steps_;
};

class RingTest : public ::testing::Test {
 protected:
  struct Config : caf::actor_system_config {
    Config() { set("scheduler.policy", caf::atom("testing")); }
  };

  RingTest() {
    occupy(memory_, ProcessSlot{0});
    // CAF takes a time of zero for "no time".
    scheduler().clock().current_time += std::chrono::hours(1);
  }
  ~RingTest() override {
    executor_ = swapper_ = nullptr;
    block_manager_ = nullptr;
    if (ring_) caf::anon_send_exit(ring_, caf::exit_reason::kill);
    ring_ = nullptr;
    settle();
    scheduler().clock().cancel_all();
    settle();
  }

  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  }
  /// Runs all runnable actors. The virtual time does not advance.
  std::size_t settle() { return scheduler().run(10000); }

  /// Spawns all actors on the test's thread and lets them initialise.
  void spawn() {
    executor_ =
        spawn_executor(system_, std::make_unique<CountingRunner>(memory_, ProcessSlot{0}, steps_),
                       Placement::scheduled);
    swapper_ = spawn_swapper(system_, std::make_unique<SwapperState>(memory_), executor_,
                             Placement::scheduled);
    block_manager_ = spawn_block_manager(system_, BlockManagerState(pool_, config_.block_manager),
                                         swapper_, executor_);
    ring_ = spawn_scheduler(system_, SchedulerState(config_.scheduler), block_manager_);
    settle();
  }

  std::shared_ptr<Recording> submit(std::uint32_t slot, const std::vector<TokenId>& prompt,
                                    const GenerationParams& params,
                                    std::vector<TokenId> journal = {}) {
    auto recording = std::make_shared<Recording>();
    SubmitBatch batch;
    batch.submissions.push_back({{1, slot},
                                 prompt,
                                 std::move(journal),
                                 params,
                                 std::make_shared<RecordingSink>(recording)});
    caf::anon_send(ring_, std::move(batch));
    return recording;
  }

  /// Step 7: sequence 1 waits with five tokens.
  static StepRequest first_step() {
    StepRequest request;
    request.step = 7;
    request.added.push_back({SeqId{1}, {1, 2, 3, 4, 5}, {}, 0});
    request.waiting = {SeqId{1}};
    request.token_budget = 100;
    return request;
  }

  PoolMemory memory_ = oracle_pool(9, 8);
  BlockPool pool_{memory_, ProcessSlot{0}};
  RingConfig config_;
  std::size_t steps_ = 0;
  Config actor_config_;
  caf::actor_system system_{actor_config_};
  PlanHandle executor_, swapper_;
  BlockManagerHandle block_manager_;
  SchedulerHandle ring_;
};

TEST_F(RingTest, OneStepRequestComesBackAsOneStepDoneThroughThreeActors) {
  spawn();
  caf::scoped_actor self{system_};
  auto pending = self->request(block_manager_, caf::infinite, first_step());
  EXPECT_EQ(settle(), 3u);  // handlers: block manager, executor, block manager
  EXPECT_EQ(steps_, 1u);
  ASSERT_TRUE(self->has_next_message());
  pending.receive(
      [](const StepDone& done) {
        EXPECT_EQ(done.step, 7u);
        ASSERT_THAT(done.sampled, SizeIs(1));
        EXPECT_EQ(done.sampled[0].token.token, oracle_next(std::vector<TokenId>{1, 2, 3, 4, 5}));
        EXPECT_THAT(done.outcome.admitted, SizeIs(1));
        EXPECT_EQ(done.outcome.scheduled_tokens, 5u);
        EXPECT_EQ(done.times.copying, 0) << "it moves no block";
        EXPECT_GT(done.times.computing, 0);
      },
      [this](const caf::error& error) { FAIL() << system_.render(error); });
  EXPECT_FALSE(self->has_next_message());
}

TEST_F(RingTest, TheExecutorHasTheNextPlanBeforeTheSchedulerKnowsOfTheLast) {
  config_.block_manager.async_scheduling = true;
  spawn();
  caf::scoped_actor self{system_};
  auto pending = self->request(block_manager_, caf::infinite, first_step());
  // Handlers: block manager, then executor and block manager for two plans.
  EXPECT_EQ(settle(), 5u);
  EXPECT_EQ(steps_, 2u);
  pending.receive([](const StepDone& done) { EXPECT_EQ(done.step, 7u); },
                  [this](const caf::error& error) { FAIL() << system_.render(error); });
  EXPECT_FALSE(self->has_next_message()) << "nobody has asked for the second";
  StepRequest next;
  next.step = 8;
  next.running = {SeqId{1}};
  next.token_budget = 100;
  pending = self->request(block_manager_, caf::infinite, std::move(next));
  settle();
  pending.receive(
      [](const StepDone& done) {
        const TokenId first = oracle_next(std::vector<TokenId>{1, 2, 3, 4, 5});
        ASSERT_THAT(done.sampled, SizeIs(1));
        EXPECT_EQ(done.sampled[0].token.token,
                  oracle_next(std::vector<TokenId>{1, 2, 3, 4, 5, first}));
      },
      [this](const caf::error& error) { FAIL() << system_.render(error); });
}

TEST_F(RingTest, AQuestionIsAnsweredWithoutAStep) {
  spawn();
  const auto asked = submit(1, {1, 2, 3, 4, 5}, {.only_asks = true});
  EXPECT_EQ(settle(), 3u);  // handlers: scheduler, block manager, scheduler
  EXPECT_EQ(asked->reason, FinishReason::room);
  EXPECT_EQ(asked->room.status, AllocStatus::ok);
  EXPECT_EQ(asked->room.needed_blocks, 2u);
  EXPECT_EQ(asked->flushes, 1u);
  EXPECT_EQ(steps_, 0u);
}

TEST_F(RingTest, QuestionsDoNotWaitForTheStepThatIsComputed) {
  config_.block_manager.async_scheduling = true;
  spawn();
  const auto answer = submit(1, {1, 2, 3, 4, 5}, {.max_tokens = 20, .ignore_eos = true});
  // The block manager has planned the first step, and the executor has not begun with it.
  while (pool_.available(Tier::device) == 8) ASSERT_TRUE(scheduler().try_run_once());
  std::vector<std::shared_ptr<Recording>> asked;
  for (std::uint32_t slot = 2; slot < 12; ++slot)
    asked.push_back(submit(slot, {1, 2, 3, 4, 5, 6}, {.only_asks = true}));
  while (!asked.back()->is_finished()) ASSERT_TRUE(scheduler().try_run_once());
  EXPECT_LT(answer->tokens.size(), 20u);
  settle();
  for (const auto& question : asked) {
    EXPECT_EQ(question->room.status, AllocStatus::ok);
    EXPECT_EQ(question->tokens.size(), 0u);
  }
  EXPECT_EQ(answer->tokens.size(), 20u);
  EXPECT_EQ(answer->reason, FinishReason::length);
}

TEST_F(RingTest, AnEmptyPlanIsAnsweredByTheBlockManagerItself) {
  spawn();
  caf::scoped_actor self{system_};
  StepRequest request;
  request.step = 8;
  auto pending = self->request(block_manager_, caf::infinite, std::move(request));
  EXPECT_EQ(settle(), 1u);
  EXPECT_EQ(steps_, 0u);
  ASSERT_TRUE(self->has_next_message());
  pending.receive([](const StepDone& done) { EXPECT_EQ(done.step, 8u); },
                  [this](const caf::error& error) { FAIL() << system_.render(error); });
}

/// A sink that, at every call, matches its prompt in the pool as another engine would.
class Seeker : public OutputSink {
 public:
  Seeker(const PoolMemory& memory, const std::vector<TokenId>& prompt,
         std::vector<std::size_t>& hits)
      : pool_(memory, ProcessSlot{1}), prompt_(prompt), hits_(hits) {}

  bool read() override { return true; }
  void wait() override {}
  bool start() override { return true; }
  void preempted() override {}
  void note(const RequestTimes&) override {}
  void admitted(const RequestStats&) override {}
  void prompt(std::size_t, std::span<const PromptToken>) override {}
  void room(const RoomStatus&) override {}
  void token(const GeneratedToken&, std::string_view) override { look(); }
  bool finished(FinishReason, const Error&, const RequestStats&, std::size_t) override {
    look();
    return true;
  }
  void flush() override {}

 private:
  void look() {
    std::vector<Hash128> chain;
    pool_.hasher().extend(chain, DomainId{0}, prompt_, pool_.tokens_per_block());
    const auto hit = pool_.match(
        Tier::device, BlockPool::root(DomainId{0}), chain,
        std::span<const TokenId>(prompt_).first(chain.size() * pool_.tokens_per_block()));
    hits_.push_back(hit.blocks.size());
    pool_.cancel(hit);
  }

  BlockPool pool_;
  std::vector<TokenId> prompt_;
  std::vector<std::size_t>& hits_;
};

TEST_F(RingTest, AllEnginesFindAPromptOnceItsFirstTokenIsOut) {
  occupy(memory_, ProcessSlot{1});
  spawn();
  const std::vector<TokenId> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const GenerationParams params{.max_tokens = 1, .ignore_eos = true};
  std::vector<std::size_t> hits;
  SubmitBatch batch;
  batch.submissions.push_back(
      {{1, 1}, prompt, {}, params, std::make_shared<Seeker>(memory_, prompt, hits)});
  caf::anon_send(ring_, std::move(batch));
  settle();
  EXPECT_THAT(hits, ElementsAre(2, 2));  // at the token, and at the end
}

TEST_F(RingTest, ARequestRunsFromSubmissionToItsLastTokenAndReturnsItsBlocks) {
  spawn();
  const std::vector<TokenId> prompt{1, 2, 3, 4, 5, 6};
  const GenerationParams params{.max_tokens = 9, .ignore_eos = true};
  const auto request = submit(1, prompt, params);
  settle();
  EXPECT_EQ(request->tokens, oracle_output(prompt, params, 1024).tokens);
  EXPECT_EQ(request->reason, FinishReason::length);
  EXPECT_EQ(request->admissions, 1u);
  EXPECT_EQ(steps_, 9u);
  EXPECT_EQ(pool_.available(Tier::device), pool_.capacity(Tier::device));
}

/// A request that scores its prompt computes all of it, in pieces here, although it is cached. What
/// it has computed, others find.
TEST_F(RingTest, AScoredPromptIsNeverReadFromTheCache) {
  config_.scheduler.max_num_batched_tokens = config_.block_manager.max_num_batched_tokens = 4;
  spawn();
  const std::vector<TokenId> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  GenerationParams params{.max_tokens = 3, .ignore_eos = true};
  (void)submit(1, prompt, params);
  settle();
  params.prompt_logprobs = 2;
  const auto scored = submit(2, prompt, params);
  settle();
  EXPECT_EQ(scored->prompt, oracle_scores(prompt, 2));
  EXPECT_EQ(scored->tokens, oracle_output(prompt, params, 1024).tokens);
  EXPECT_EQ(scored->stats.cached_tokens, 0u);
  params.prompt_logprobs.reset();
  const auto later = submit(3, prompt, params);
  settle();
  EXPECT_EQ(later->stats.cached_tokens, 8u);
  EXPECT_TRUE(later->prompt.empty());
}

TEST_F(RingTest, ASuccessorScoresNoPromptWhoseAnswerHasBegun) {
  spawn();
  const std::vector<TokenId> prompt{1, 2, 3, 4, 5, 6};
  const GenerationParams params{.max_tokens = 4, .prompt_logprobs = 1, .ignore_eos = true};
  const std::vector<TokenId> answer = oracle_output(prompt, params, 1024).tokens;
  const auto request = submit(1, prompt, params, {answer.front()});
  settle();
  EXPECT_EQ(request->tokens, answer);
  EXPECT_TRUE(request->prompt.empty());
}

TEST_F(RingTest, APromptOfOneTokenHasOneScore) {
  spawn();
  const GenerationParams params{.max_tokens = 1, .prompt_logprobs = 3, .ignore_eos = true};
  const auto request = submit(1, {7}, params);
  settle();
  EXPECT_EQ(request->prompt, oracle_scores(std::vector<TokenId>{7}, 3));
}

TEST_F(RingTest, ManyRequestsInASmallPoolAreSwappedAndGetTheRightTokens) {
  config_.block_manager.preemption = PreemptionMode::swap;
  config_.scheduler.max_model_len = 32;
  spawn();
  const GenerationParams params{.max_tokens = 16, .ignore_eos = true};
  std::vector<std::shared_ptr<Recording>> requests;
  for (TokenId i = 0; i < 6; ++i)
    requests.push_back(submit(static_cast<std::uint32_t>(i), {i, 2, 3, 4, 5}, params));
  settle();
  for (TokenId i = 0; i < 6; ++i)
    EXPECT_EQ(requests[static_cast<std::size_t>(i)]->tokens,
              oracle_output(std::vector<TokenId>{i, 2, 3, 4, 5}, params, 32).tokens);
  EXPECT_GT(pool_.counters()["preemptions_swap"].load(), 0u);
  for (const Tier tier : {Tier::device, Tier::host})
    EXPECT_EQ(pool_.available(tier), pool_.capacity(tier));
}

TEST_F(RingTest, ABadRequestIsRefusedAndTheNextOneServed) {
  spawn();
  const auto bad = submit(1, {}, {});
  const auto good = submit(2, {1}, {.max_tokens = 1});
  settle();
  EXPECT_EQ(bad->reason, FinishReason::error);
  EXPECT_TRUE(good->is_finished());
  EXPECT_THAT(good->tokens, SizeIs(1));
}

TEST_F(RingTest, AnAbortEndsARequestBetweenTwoStepsAndReturnsItsBlocks) {
  spawn();
  const auto request = submit(1, {1, 2, 3}, {.max_tokens = 500, .ignore_eos = true});
  for (int i = 0; i < 10; ++i) scheduler().run_once();
  EXPECT_FALSE(request->is_finished());
  caf::anon_send(ring_, AbortBatch{{{1, 1}}, {}});
  settle();
  EXPECT_EQ(request->reason, FinishReason::abort);
  EXPECT_LT(request->tokens.size(), 10u);
  EXPECT_EQ(pool_.available(Tier::device), pool_.capacity(Tier::device));
}

TEST_F(RingTest, AClosedChannelEndsItsRequests) {
  spawn();
  const auto first = submit(1, {1, 2, 3}, {.max_tokens = 500, .ignore_eos = true});
  const auto second = submit(2, {1, 2, 3}, {.max_tokens = 500, .ignore_eos = true});
  for (int i = 0; i < 6; ++i) scheduler().run_once();
  caf::anon_send(ring_, AbortBatch{{}, {1}});
  settle();
  EXPECT_EQ(first->reason, FinishReason::abort);
  EXPECT_EQ(second->reason, FinishReason::abort);
  EXPECT_EQ(pool_.available(Tier::device), pool_.capacity(Tier::device));
}

TEST_F(RingTest, ALongJournalIsReplayedToItsEndAlsoWithoutSteps) {
  constexpr std::uint32_t kTokens = 3 * SchedulerState::kReplayedAtOnce;
  config_.scheduler.max_model_len = 2 * kTokens;
  spawn();
  const auto request = submit(1, {1, 2, 3}, {.max_tokens = kTokens, .ignore_eos = true},
                              std::vector<TokenId>(kTokens, 1));
  settle();
  EXPECT_EQ(request->reason, FinishReason::length);
  EXPECT_EQ(request->tokens.size(), kTokens);
}

TEST_F(RingTest, WithAllBlocksHeldElsewhereTheRingRetriesEveryMillisecond) {
  BlockPool other(memory_, ProcessSlot{1});
  occupy(memory_, ProcessSlot{1}, 2);
  const auto taken = other.allocate(Tier::device, 8).value();
  spawn();
  const auto request = submit(1, {1, 2, 3}, {.max_tokens = 2, .ignore_eos = true});
  EXPECT_LT(settle(), 10u);  // it does not spin
  EXPECT_FALSE(request->is_finished());
  scheduler().advance_time(std::chrono::milliseconds(1));
  EXPECT_LT(settle(), 10u);
  other.release(taken);
  EXPECT_FALSE(request->is_finished());
  scheduler().advance_time(std::chrono::milliseconds(1));
  settle();
  EXPECT_EQ(request->reason, FinishReason::length);
}

TEST_F(RingTest, AllActorsEndWithTheScheduler) {
  spawn();
  submit(1, {1, 2, 3}, {.max_tokens = 3, .ignore_eos = true});
  settle();
  executor_ = swapper_ = nullptr;
  block_manager_ = nullptr;
  EXPECT_EQ(system_.registry().running(), 4u);
  caf::anon_send_exit(ring_, caf::exit_reason::user_shutdown);
  ring_ = nullptr;
  settle();
  EXPECT_EQ(system_.registry().running(), 0u);
}

/// The ring as in an engine: swapper and executor on threads of their own, two worker threads.
TEST(Ring, OnThreadsServesAndShutsDown) {
  const PoolMemory memory = oracle_pool(9, 8);
  occupy(memory, ProcessSlot{0});
  BlockPool pool(memory, ProcessSlot{0});
  const GenerationParams params{.max_tokens = 12, .ignore_eos = true};
  std::vector<std::shared_ptr<Recording>> requests;
  {
    ActorConfig actor_config;
    caf::actor_system system(actor_config);
    RingParts parts;
    parts.scheduler = RingConfig{}.scheduler;
    parts.pool = &pool;
    parts.swapper = std::make_unique<SwapperState>(memory);
    parts.runner = std::make_unique<OracleRunner>(memory, ProcessSlot{0});
    const SchedulerHandle ring = spawn_ring(system, std::move(parts));
    std::promise<void> all_done;
    struct LastSink : RecordingSink {
      LastSink(std::shared_ptr<Recording> recording, std::promise<void>& done)
          : RecordingSink(std::move(recording)), done_(done) {}
      bool finished(FinishReason reason, const Error& error, const RequestStats& stats,
                    std::size_t bytes) override {
        const bool is_done = RecordingSink::finished(reason, error, stats, bytes);
        done_.set_value();
        return is_done;
      }
      std::promise<void>& done_;
    };
    SubmitBatch batch;
    requests.push_back(std::make_shared<Recording>());
    batch.submissions.push_back(
        {{1, 1}, {1, 2, 3, 4, 5}, {}, params, std::make_shared<LastSink>(requests[0], all_done)});
    caf::anon_send(ring, std::move(batch));
    all_done.get_future().wait();
    caf::anon_send_exit(ring, caf::exit_reason::user_shutdown);
  }
  EXPECT_EQ(requests[0]->tokens,
            oracle_output(std::vector<TokenId>{1, 2, 3, 4, 5}, params, 1024).tokens);
}

}  // namespace
}  // namespace kvhive::testing
