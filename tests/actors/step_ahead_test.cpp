// Steps that are planned while the one before is computed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/newest_tokens.hpp"
#include "actors/block_manager/step_pipeline.hpp"
#include "pool/care/fsck.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kSize = 4;  // tokens per block

/// A pipeline over blocks of 4 tokens. The test takes the parts of scheduler and executor.
class StepAhead : public ::testing::Test {
 protected:
  explicit StepAhead(const PoolGeometry& geometry = small_geometry(17, 0, kSize),
                     BlockManagerConfig config = {})
      : memory_(private_pool(geometry)),
        pool_(signed_in(memory_), ProcessSlot{0}),
        pipeline_(BlockManagerState(pool_, ahead(std::move(config)))) {}

  static BlockManagerConfig ahead(BlockManagerConfig config) {
    config.async_scheduling = true;
    return config;
  }

  static const PoolMemory& signed_in(const PoolMemory& memory) {
    occupy(memory, ProcessSlot{0}, 1);
    return memory;
  }

  /// The next request adds this sequence and has it waiting.
  NewSequence& add(std::uint64_t seq, std::size_t tokens, std::uint32_t most_tokens = 1000) {
    request_.waiting.push_back(SeqId{seq});
    NewSequence& added = request_.added.emplace_back();
    added.seq = SeqId{seq};
    for (std::size_t i = 0; i < tokens; ++i)
      added.tokens.push_back(static_cast<TokenId>(100 * seq + i));
    added.most_tokens = most_tokens;
    return added;
  }
  /// Plans of what the scheduler asks now that go to the executor at once.
  std::vector<StepPlan> ask(const std::vector<std::uint64_t>& running,
                            const std::vector<std::uint64_t>& ended = {}) {
    StepRequest request = std::exchange(request_, {});
    request.step = ++step_;
    request.token_budget = 100;
    for (const auto seq : running) request.running.push_back(SeqId{seq});
    for (const auto seq : ended) request.ended.push_back(SeqId{seq});
    request.victims.assign(request.running.rbegin(), request.running.rend());
    pipeline_.ask(request);
    return next_plans();
  }
  std::vector<StepPlan> next_plans() {
    std::vector<StepPlan> plans;
    while (auto plan = pipeline_.next_plan()) plans.push_back(std::move(*plan));
    return plans;
  }
  /// The executor has computed the plan and sampled this token for all that sample.
  void compute(const StepPlan& plan, TokenId token, double seconds = 0) {
    StepDone done{plan.step, plan.outcome, {}, {.computing = seconds}};
    for (const ScheduledSequence& work : plan.work)
      if (work.samples) done.sampled.push_back({work.seq, {token, 0, {}}});
    pipeline_.done(std::move(done));
  }
  std::size_t available() const { return pool_.available(Tier::device); }
  static std::vector<std::uint64_t> seqs(const StepPlan& plan) {
    std::vector<std::uint64_t> values;
    for (const auto& work : plan.work) values.push_back(work.seq.value);
    return values;
  }

  void TearDown() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  PoolMemory memory_;
  BlockPool pool_;
  StepPipeline pipeline_;

 private:
  StepRequest request_;
  std::uint64_t step_ = 0;
};

TEST_F(StepAhead, GoesOnBehindTheStepUnderWay) {
  add(1, 7);
  auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  const ScheduledSequence& ahead = plans[1].work.at(0);
  EXPECT_EQ(plans[1].step, plans[0].step + 1);
  EXPECT_EQ(ahead.start, 7u);
  EXPECT_TRUE(ahead.is_to_come && ahead.samples);
  EXPECT_THAT(ahead.tokens, ElementsAre(-1));
  EXPECT_EQ(ahead.blocks.size(), 2u);

  compute(plans[0], 50);
  ASSERT_TRUE(pipeline_.answer().has_value());
  // The scheduler learns of the first, and asks for the second, while it is computed.
  plans = {plans[1]};
  for (const auto& next : ask({1})) plans.push_back(next);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[1].work.at(0).start, 8u);
  EXPECT_EQ(plans[1].work.at(0).blocks.size(), 3u);
  EXPECT_EQ(pool_.counters()["published_blocks"].load(), 1u);
  compute(plans[0], 51);
  EXPECT_EQ(pool_.counters()["published_blocks"].load(), 2u);
  EXPECT_EQ(pipeline_.answer()->sampled.at(0).token.token, 51);
}

TEST_F(StepAhead, MayBeDoneBeforeItIsAskedFor) {
  add(1, 7);
  const auto plans = ask({});
  compute(plans[0], 50);
  compute(plans[1], 51);
  EXPECT_EQ(pipeline_.answer()->sampled.at(0).token.token, 50);
  EXPECT_FALSE(pipeline_.answer().has_value()) << "nobody has asked for it";
  const auto next = ask({1});
  EXPECT_EQ(pipeline_.answer()->sampled.at(0).token.token, 51);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_THAT(next[0].work.at(0).tokens, ElementsAre(51)) << "known by now";
  EXPECT_FALSE(next[0].work.at(0).is_to_come);
}

/// The step under way writes into them, and another engine would take them at once.
TEST_F(StepAhead, KeepsTheBlocksOfWhatHasEnded) {
  add(1, 7);
  add(2, 7);
  const auto plans = ask({});
  compute(plans[0], 50);
  (void)pipeline_.answer();
  const std::size_t before = available();
  const auto next = ask({2}, {1});
  EXPECT_EQ(available(), before - 1) << "only the block that the plan behind needs is gone";
  ASSERT_EQ(next.size(), 1u);
  EXPECT_THAT(seqs(next[0]), ElementsAre(2));
  compute(plans[1], 51);
  EXPECT_EQ(available(), before + 1);
  EXPECT_EQ(pool_.counters()["ended_rows"].load(), 1u);
  EXPECT_EQ(pool_.counters()["generated_tokens"].load(), 3u) << "51 is sequence 2's alone";
}

/// Also of a step that is done before the scheduler asks for it.
TEST_F(StepAhead, CountsNoTokensOfWhatHasEnded) {
  add(1, 7);
  add(2, 7);
  const auto plans = ask({});
  compute(plans[0], 50);
  compute(plans[1], 51);
  (void)pipeline_.answer();
  EXPECT_EQ(pool_.counters()["generated_tokens"].load(), 2u);
  ask({2}, {1});
  EXPECT_EQ(pool_.counters()["generated_tokens"].load(), 3u);
  EXPECT_EQ(pool_.counters()["ended_rows"].load(), 1u);
  EXPECT_EQ(pipeline_.answer()->sampled.size(), 2u) << "the scheduler drops what it does not know";
}

/// vLLM: test_multiple_deferred_frees_drain_in_order.
TEST_F(StepAhead, ReleasesWhatHasEndedInTheOrderOfTheStep) {
  add(1, 7);
  add(2, 7);
  const auto plans = ask({});
  compute(plans[0], 50);
  (void)pipeline_.answer();
  EXPECT_THAT(ask({}, {2, 1}), IsEmpty());
  EXPECT_EQ(available(), 12u);
  compute(plans[1], 51);
  // Both have a block with content and one without. Those without are taken first, and of the
  // others the first sequence's.
  std::vector<std::uint32_t> queue;
  for (const BlockId block : pool_.free_queue(Tier::device)) queue.push_back(block.value);
  EXPECT_THAT(queue, ElementsAre(4, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 3));
}

/// vLLM: test_max_tokens_finish_frees_immediately_with_other_inflight.
TEST_F(StepAhead, ReleasesAtOnceWhatNoStepUnderWayWrites) {
  add(1, 5);
  add(2, 5, 6);  // ends with its first token
  const auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  compute(plans[0], 50);
  (void)pipeline_.answer();
  EXPECT_EQ(available(), 12u);
  ask({1}, {2});
  EXPECT_EQ(available(), 14u);
}

TEST_F(StepAhead, LeavesOutWhatEndsForCertain) {
  add(1, 5, 7);
  add(2, 5, 6);
  const auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_THAT(seqs(plans[1]), ElementsAre(1));
  compute(plans[0], 50);
  (void)pipeline_.answer();
  EXPECT_THAT(ask({1}, {2}), IsEmpty()) << "the step under way gives sequence 1 its last token";
}

/// A step ahead would pass over what waits.
TEST_F(StepAhead, IsNotPlannedWhileSomethingWaits) {
  add(1, 40);
  add(2, 40);
  auto plans = ask({});
  ASSERT_EQ(plans.size(), 1u) << "no room for the second";
  compute(plans[0], 50);
  (void)pipeline_.answer();
  plans = ask({1});
  ASSERT_EQ(plans.size(), 2u) << "the scheduler has nobody waiting";
  compute(plans[0], 51);
  (void)pipeline_.answer();
  add(3, 4);
  EXPECT_THAT(ask({1}), IsEmpty());
  compute(plans[1], 52);
  EXPECT_THAT(pipeline_.answer()->outcome.admitted, IsEmpty());
}

TEST_F(StepAhead, IsNotPlannedWhileAPromptIsScored) {
  NewSequence& scored = add(1, 7);
  scored.scored_tokens = 7;
  scored.reads_cache = false;
  EXPECT_EQ(ask({}).size(), 1u);
}

TEST_F(StepAhead, IsPlannedWhileStepsAreShort) {
  add(1, 7);
  auto plans = ask({});
  compute(plans.at(0), 50, 0.02);
  (void)pipeline_.answer();
  EXPECT_THAT(ask({1}), IsEmpty());
  compute(plans.at(1), 51, 0.02);
  (void)pipeline_.answer();
  plans = ask({1});
  EXPECT_EQ(plans.size(), 1u);
  compute(plans.at(0), 52, 0.002);
  (void)pipeline_.answer();
  EXPECT_EQ(ask({1}).size(), 2u);
}

class StepAheadInASmallPool : public StepAhead {
 protected:
  StepAheadInASmallPool() : StepAhead(small_geometry(6, 0, kSize)) {}
};

/// Who finds none waits for a step that may preempt.
TEST_F(StepAheadInASmallPool, TakesOnlyWhomThereIsRoomFor) {
  add(1, 8);
  add(2, 8);
  auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_THAT(seqs(plans[1]), ElementsAre(1));
  compute(plans[0], 50);
  (void)pipeline_.answer();
  EXPECT_THAT(ask({1, 2}), IsEmpty());
  compute(plans[1], 51);
  (void)pipeline_.answer();
  plans = ask({1, 2});
  EXPECT_EQ(plans.at(0).outcome.preempted.size(), 1u);
  EXPECT_THAT(seqs(plans.at(0)), ElementsAre(1));
}

class StepAheadInAGroup : public StepAhead {
 protected:
  explicit StepAheadInAGroup(CacheGroup group, BlockManagerConfig config = {})
      : StepAhead(geometry(group), std::move(config)) {}
  static PoolGeometry geometry(CacheGroup group) {
    PoolGeometry geometry = small_geometry(17, 0, kSize);
    geometry.models[0].groups = groups_of({group});
    return geometry;
  }
};

class StepAheadInAWindow : public StepAheadInAGroup {
 protected:
  StepAheadInAWindow() : StepAheadInAGroup(window(4)) {}
};

/// vLLM: test_swa_inflight_window_free.
TEST_F(StepAheadInAWindow, KeepsTheBlocksThatTheStepUnderWayReads) {
  add(1, 6);
  auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  const BlockId first = plans[0].work.at(0).blocks.at(0);
  compute(plans[0], 50);
  (void)pipeline_.answer();
  // Token 6, which is computed now, reads from token 3 on; token 7 of the next plan from token 4.
  const auto next = ask({1});
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].work.at(0).blocks.at(0), kNullBlock);
  EXPECT_EQ(pool_.references(first), 1u);
  compute(plans[1], 51);
  (void)pipeline_.answer();
  ask({1});
  EXPECT_EQ(pool_.references(first), 0u);
}

/// Without a cache: with one, a prompt is computed from its last chunk on, for none before is read.
class StepAheadInChunks : public StepAheadInAGroup {
 protected:
  StepAheadInChunks() : StepAheadInAGroup(chunks(8), {.prefix_caching = false}) {}
};

/// vLLM: test_chunked_local_free_waits_for_in_flight_step.
TEST_F(StepAheadInChunks, KeepsThoseOfAPromptUntilItIsComputed) {
  add(1, 10);
  const auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  const std::vector<BlockId> prompt = plans[0].work.at(0).blocks;
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_THAT(plans[1].work.at(0).blocks, ElementsAre(kNullBlock, kNullBlock, prompt[2]));
  EXPECT_EQ(available(), 13u);
  compute(plans[0], 50);
  (void)pipeline_.answer();
  ask({1});
  EXPECT_EQ(available(), 15u);
  for (const BlockId block : {prompt[0], prompt[1]}) EXPECT_EQ(pool_.references(block), 0u);
  EXPECT_EQ(pool_.references(prompt[2]), 1u);
}

TEST_F(StepAheadInChunks, KeepsTheOneThatTheStepUnderWayReads) {
  add(1, 7);
  auto plans = ask({});
  ASSERT_EQ(plans.size(), 2u);
  const std::vector<BlockId> chunk = plans[1].work.at(0).blocks;
  ASSERT_EQ(chunk.size(), 2u);
  compute(plans[0], 50);
  (void)pipeline_.answer();
  // Token 7, which is computed now, reads all of its chunk; token 8 of the next plan begins one.
  const auto next = ask({1});
  ASSERT_EQ(next.size(), 1u);
  EXPECT_THAT(next[0].work.at(0).blocks, ElementsAre(kNullBlock, kNullBlock, ::testing::_));
  for (const BlockId block : chunk) EXPECT_EQ(pool_.references(block), 1u);
  compute(plans[1], 51);
  (void)pipeline_.answer();
  ask({1});
  for (const BlockId block : chunk) EXPECT_EQ(pool_.references(block), 0u);
}

class StepAheadWithAHostTier : public StepAhead {
 protected:
  StepAheadWithAHostTier() : StepAhead(small_geometry(4, 8, kSize)) {}
};

/// The swapper works for one step at a time.
TEST_F(StepAheadWithAHostTier, WaitsIfItMovesBlocks) {
  pipeline_.state().copy_policy().set(1, 1000);
  add(1, 9);
  auto plans = ask({});
  for (const StepPlan& plan : plans) compute(plan, 50);
  (void)pipeline_.answer();
  ask({}, {1});
  (void)pipeline_.answer();
  add(2, 4);
  plans = ask({});  // the first step fills the block that is free
  ASSERT_EQ(plans.size(), 1u) << "the second takes one with content";
  EXPECT_FALSE(plans[0].moves_blocks());
  compute(plans[0], 51);
  plans = next_plans();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].demotions.size(), 1u);
  EXPECT_TRUE(plans[0].work.at(0).is_to_come);
}

TEST(NewestTokens, AreFilledInWhateverTheOrder) {
  const std::vector<SampledToken> sampled = {
      {SeqId{1}, {11, 0, {}}}, {SeqId{2}, {12, 0, {}}}, {SeqId{3}, {13, 0, {}}}};
  StepPlan plan;
  for (const std::uint64_t seq : {3u, 9u, 1u, 2u}) {
    ScheduledSequence& work = plan.work.emplace_back();
    work.seq = SeqId{seq};
    work.is_to_come = seq != 9;
    work.tokens = {seq == 9 ? 99 : -1};
  }
  NewestTokens(sampled).fill_in(plan);
  std::vector<TokenId> tokens;
  for (const ScheduledSequence& work : plan.work) tokens.push_back(work.tokens.at(0));
  EXPECT_THAT(tokens, ElementsAre(13, 99, 11, 12));
}

}  // namespace
}  // namespace kvhive::testing
