#include "actors/block_manager/block_manager_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "actors/swapper_state.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/fsck.hpp"
#include "recording_sink.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kSize = 4;  // tokens per block

/// A block manager over blocks of 4 tokens. The test takes the parts of scheduler and executor.
class BlockManagerStateTest : public ::testing::Test {
 protected:
  /// One step request, with sequences as plain numbers.
  struct Step {
    std::vector<std::uint64_t> running;
    std::vector<std::uint64_t> waiting;
    std::vector<std::uint64_t> ended;
    std::uint32_t budget = 1000;
    std::vector<std::uint64_t> victims;  ///< if empty, `running` in reverse order
  };

  /// A test that needs another pool than the default one calls this first.
  void make_pool(std::uint32_t device_capacity, std::uint32_t host_blocks = 0) {
    PoolGeometry geometry = small_geometry(device_capacity + 1, host_blocks, kSize);
    geometry.limits = limits_;
    geometry.life_stride = 1;
    memory_.emplace(private_pool(geometry));
    for (const std::uint32_t slot : {0u, 1u}) occupy(*memory_, ProcessSlot{slot}, slot + 1);
    pool_.emplace(*memory_, ProcessSlot{0});
    peer_.emplace(*memory_, ProcessSlot{1});
  }
  void use_swap() { config_.preemption = PreemptionMode::swap; }

  BlockManagerState& manager() {
    if (!pool_) make_pool(16);
    if (!manager_) manager_.emplace(*pool_, config_);
    return *manager_;
  }

  /// The next plan() adds this sequence.
  void add(std::uint64_t seq, std::vector<TokenId> tokens, DomainId domain = DomainId{0}) {
    request_.added.push_back({SeqId{seq}, std::move(tokens), {}, 0, domain});
    known_.insert(seq);
  }
  /// The sequence added last has a cache salt.
  void salt_it(const ExtraKey& salt) { request_.added.back().salt = salt; }
  /// Another engine has taken the sequence added last.
  void say_it_was_lost() {
    const auto recording = std::make_shared<Recording>();
    recording->is_lost = true;
    request_.added.back().sink = std::make_shared<RecordingSink>(recording);
  }
  /// Marks the sequence added last as one that an engine admitted before it died.
  /// \param computed  tokens of it that the engine had computed
  void say_it_was_admitted_before(std::uint32_t computed = 0) {
    request_.added.back().is_counted = true;
    request_.added.back().computed_before = computed;
  }
  void append(std::uint64_t seq, TokenId token) {
    done_.sampled.push_back({SeqId{seq}, {token, 0, {}}});
  }

  void guess(std::uint64_t seq, std::vector<TokenId> tokens) {
    request_.drafts.push_back({SeqId{seq}, std::move(tokens)});
  }

  StepPlan plan(const Step& step) {
    manager().finish_step(std::exchange(done_, {}));
    StepRequest request = std::move(request_);
    request_ = {};
    request.step = ++step_;
    request.token_budget = step.budget;
    for (const auto seq : step.running) request.running.push_back(SeqId{seq});
    for (const auto seq : step.waiting) request.waiting.push_back(SeqId{seq});
    request.waiting_in_all = static_cast<std::uint32_t>(step.waiting.size());
    for (const auto seq : step.ended) {
      request.ended.push_back(SeqId{seq});
      known_.erase(seq);
    }
    for (const auto seq : step.victims) request.victims.push_back(SeqId{seq});
    if (step.victims.empty())
      request.victims.assign(request.running.rbegin(), request.running.rend());
    return manager().plan(request);
  }

  /// Tells the manager that the step is done and has sampled this sequence's next token.
  void finish_sampling(std::uint64_t seq) {
    StepDone done;
    done.sampled.push_back({SeqId{seq}, {}});
    manager().finish_step(done);
  }

  /// How many blocks of `tokens` another process finds.
  std::size_t found_by_peer(const std::vector<TokenId>& tokens, Tier tier = Tier::device,
                            DomainId domain = DomainId{0}, const ExtraKey& salt = kNoExtraKey) {
    const Prompt prompt(*peer_, tokens, domain, salt);
    const PrefixHit hit = match_all(*peer_, prompt, tier);
    peer_->cancel(hit);
    return hit.blocks.size();
  }
  std::size_t available(Tier tier = Tier::device) { return pool_->available(tier); }

  static std::vector<std::uint64_t> seqs(const std::vector<ScheduledSequence>& work) {
    std::vector<std::uint64_t> values;
    for (const auto& item : work) values.push_back(item.seq.value);
    return values;
  }
  static std::vector<std::uint64_t> seqs(const std::vector<Admission>& admissions) {
    std::vector<std::uint64_t> values;
    for (const auto& item : admissions) values.push_back(item.seq.value);
    return values;
  }
  static std::vector<std::uint64_t> seqs(const std::vector<SeqId>& ids) {
    std::vector<std::uint64_t> values;
    for (const SeqId seq : ids) values.push_back(seq.value);
    return values;
  }

  /// Ends all sequences and checks that every block is available again.
  void TearDown() override {
    peer_->release(held_by_peer_);
    const std::vector<std::uint64_t> left(known_.begin(), known_.end());
    plan({.ended = left});
    for (const Tier tier : {Tier::device, Tier::host})
      EXPECT_EQ(pool_->available(tier), pool_->capacity(tier)) << to_string(tier);
    EXPECT_THAT(fsck(*memory_).violations, IsEmpty());
  }

  void peer_takes(std::size_t blocks, Tier tier = Tier::device) {
    const auto taken = peer_->allocate(tier, blocks).value();
    held_by_peer_.insert(held_by_peer_.end(), taken.begin(), taken.end());
  }
  void peer_gives_back() {
    peer_->release(held_by_peer_);
    held_by_peer_.clear();
  }

  /// Each of two sequences would need two blocks more, of three that are left.
  void expect_that_a_preempted_sequence_loses_its_guesses() {
    for (const std::uint64_t seq : {1, 2}) add(seq, counting(static_cast<TokenId>(seq * 50), 4));
    plan({.waiting = {1, 2}});
    for (const std::uint64_t seq : {1, 2}) {
      append(seq, 9);
      guess(seq, {8, 7, 6, 5});
    }
    EXPECT_THAT(seqs(plan({.running = {1, 2}}).outcome.preempted), ElementsAre(2));
    append(1, 3);
    plan({.running = {1}});
    const StepPlan again = plan({.waiting = {2}, .ended = {1}});
    ASSERT_THAT(again.work, SizeIs(1));
    EXPECT_EQ(again.work[0].drafts, 0u);
    EXPECT_EQ(again.work[0].tokens.back(), 9);
  }

  /// Another process computes and publishes these tokens, and holds their blocks.
  std::vector<BlockId> compute_by_peer(const std::vector<TokenId>& tokens) {
    return admit(*peer_, Prompt(*peer_, tokens)).value().blocks;
  }

  BlockManagerConfig config_;
  std::array<BlockLimits, kLimitedDomains> limits_{};
  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_;
  std::optional<BlockPool> peer_;

 private:
  std::optional<BlockManagerState> manager_;
  StepRequest request_;
  StepDone done_;  ///< of the step before
  std::set<std::uint64_t> known_;
  std::vector<BlockId> held_by_peer_;
  std::uint64_t step_ = 0;
};

// -- serving

/// It is asked last, when it has its blocks: they go back, also those that it found.
TEST_F(BlockManagerStateTest, ASequenceThatIsLostWhenItIsAdmittedTakesNothing) {
  add(1, counting(0, 9));
  plan({.waiting = {1}});
  finish_sampling(1);
  const std::size_t before = available();
  add(2, counting(0, 12));
  say_it_was_lost();
  add(3, counting(50, 4));
  const StepPlan step = plan({.running = {1}, .waiting = {2, 3}});
  EXPECT_THAT(seqs(step.outcome.lost), ElementsAre(2));
  EXPECT_THAT(seqs(step.outcome.admitted), ElementsAre(3)) << "the next has its turn";
  EXPECT_EQ(available(), before - 1);
}

TEST_F(BlockManagerStateTest, AnAdmittedPromptIsComputedWholeAndSamples) {
  add(1, counting(10, 6));
  const StepPlan first = plan({.waiting = {1}});
  ASSERT_THAT(seqs(first.work), ElementsAre(1));
  const ScheduledSequence& work = first.work[0];
  EXPECT_EQ(work.start, 0u);
  EXPECT_EQ(work.tokens, counting(10, 6));
  EXPECT_THAT(work.blocks, SizeIs(2));
  EXPECT_TRUE(work.samples);
  ASSERT_THAT(seqs(first.outcome.admitted), ElementsAre(1));
  EXPECT_EQ(first.outcome.admitted[0].cached_tokens, 0u);
  EXPECT_EQ(first.outcome.scheduled_tokens, 6u);
}

TEST_F(BlockManagerStateTest, ARunningSequenceComputesItsLastTokenInItsTable) {
  add(1, counting(10, 4));
  const StepPlan first = plan({.waiting = {1}});
  append(1, 77);
  const StepPlan second = plan({.running = {1}});
  ASSERT_THAT(second.work, SizeIs(1));
  EXPECT_EQ(second.work[0].start, 4u);
  EXPECT_THAT(second.work[0].tokens, ElementsAre(77));
  ASSERT_THAT(second.work[0].blocks, SizeIs(2));
  EXPECT_EQ(second.work[0].blocks[0], first.work[0].blocks[0]);
}

TEST_F(BlockManagerStateTest, SamplingAndLogprobsTravelWithTheWork) {
  manager();
  StepRequest request;
  request.added.push_back({SeqId{1}, {1, 2}, {.temperature = 0.5f, .seed = 42}, 3});
  request.waiting = {SeqId{1}};
  request.token_budget = 10;
  const StepPlan made = manager().plan(request);
  ASSERT_THAT(made.work, SizeIs(1));
  EXPECT_EQ(made.work[0].sampling.seed, 42u);
  EXPECT_EQ(made.work[0].logprobs, 3u);
  plan({.ended = {1}});
}

TEST_F(BlockManagerStateTest, TheRunningAreServedFirstAndTheRestOfTheBudgetIsAChunk) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  append(1, 77);
  add(2, counting(50, 9));
  const StepPlan second = plan({.running = {1}, .waiting = {2}, .budget = 6});
  ASSERT_THAT(seqs(second.work), ElementsAre(1, 2));
  EXPECT_EQ(second.work[1].tokens, counting(50, 5));
  EXPECT_THAT(second.work[1].blocks, SizeIs(2));
  EXPECT_FALSE(second.work[1].samples);
  EXPECT_EQ(second.outcome.scheduled_tokens, 6u);

  append(1, 78);
  const StepPlan third = plan({.running = {1, 2}, .budget = 6});
  ASSERT_THAT(seqs(third.work), ElementsAre(1, 2));
  EXPECT_EQ(third.work[1].start, 5u);
  EXPECT_EQ(third.work[1].tokens, counting(55, 4));
  EXPECT_TRUE(third.work[1].samples);
}

TEST_F(BlockManagerStateTest, WithTheBudgetSpentNoOtherSequenceIsServed) {
  for (const std::uint64_t seq : {1, 2, 3}) add(seq, counting(static_cast<TokenId>(seq * 50), 8));
  const StepPlan first = plan({.waiting = {1, 2, 3}, .budget = 16});
  EXPECT_THAT(seqs(first.outcome.admitted), ElementsAre(1, 2));
  for (const std::uint64_t seq : {1, 2}) append(seq, 9);
  const StepPlan second = plan({.running = {1, 2}, .waiting = {3}, .budget = 1});
  EXPECT_THAT(seqs(second.work), ElementsAre(1));
  EXPECT_THAT(seqs(plan({.running = {1, 2}, .budget = 10}).work), ElementsAre(2));
}

/// vLLM: test_schedule_concurrent_partial_requests. The last one gets what is left of the budget.
TEST_F(BlockManagerStateTest, LongPromptsAreComputedTogetherInPiecesOfTheThreshold) {
  config_.long_prefill_token_threshold = 8;
  for (const std::uint64_t seq : {1, 2, 3}) add(seq, counting(static_cast<TokenId>(seq * 50), 16));
  const auto computed = [](const StepPlan& plan) {
    std::vector<std::size_t> tokens;
    for (const ScheduledSequence& work : plan.work) tokens.push_back(work.tokens.size());
    return tokens;
  };
  EXPECT_THAT(computed(plan({.waiting = {1, 2, 3}, .budget = 20})), ElementsAre(8, 8, 4));
  EXPECT_THAT(computed(plan({.running = {1, 2, 3}, .budget = 20})), ElementsAre(8, 8, 4));
  for (const std::uint64_t seq : {1, 2}) append(seq, 7);
  EXPECT_THAT(computed(plan({.running = {1, 2, 3}, .budget = 20})), ElementsAre(1, 1, 8));
}

/// V0: test_append_slots, test_append_token_ids_allocation, test_ensure_num_empty_slots_allocation.
/// Guesses need room as tokens do.
TEST_F(BlockManagerStateTest, TakesABlockOnlyForTokensThatNoneHasRoomFor) {
  constexpr std::size_t kCapacity = 16;
  const auto blocks = [](std::size_t tokens) { return (tokens + kSize - 1) / kSize; };
  make_pool(kCapacity);
  std::uint64_t seq = 0;
  for (const std::size_t prompt : {1, 3, 4, 5, 8})
    for (const std::size_t guesses : {0, 2, 3, 9}) {
      SCOPED_TRACE(::testing::Message() << prompt << " tokens, " << guesses << " guesses");
      ++seq;
      add(seq, counting(static_cast<TokenId>(seq * 100), prompt));
      plan({.waiting = {seq}});
      EXPECT_EQ(kCapacity - available(), blocks(prompt));
      append(seq, 7);
      guess(seq, std::vector<TokenId>(guesses, 9));
      EXPECT_EQ(plan({.running = {seq}}).work.at(0).blocks.size(), blocks(prompt + 1 + guesses));
      EXPECT_EQ(kCapacity - available(), blocks(prompt + 1 + guesses));
      // All guesses are wrong: what they had room in, later tokens have.
      for (std::size_t tokens = prompt + 2; tokens <= 30; ++tokens) {
        append(seq, 8);
        EXPECT_EQ(plan({.running = {seq}}).work.at(0).blocks.size(), blocks(tokens));
        EXPECT_EQ(kCapacity - available(), blocks(std::max(tokens, prompt + 1 + guesses)));
      }
      plan({.ended = {seq}});
      EXPECT_EQ(available(), kCapacity);
    }
}

// -- a reset of the prefix cache

TEST_F(BlockManagerStateTest, AfterAResetNothingOldIsFoundAndWhatRunsGoesOn) {
  add(1, counting(10, 9));
  plan({.waiting = {1}});
  append(1, 19);
  reset_cache(*memory_);
  add(2, counting(10, 9));
  const StepPlan step = plan({.running = {1}, .waiting = {2}});
  EXPECT_EQ(step.work.at(0).start, 9u);
  EXPECT_EQ(step.outcome.admitted.at(0).cached_tokens, 0u);
  append(1, 20);
  append(2, 19);
  add(3, counting(10, 9));
  const StepPlan next = plan({.running = {1, 2}, .waiting = {3}});
  EXPECT_EQ(next.outcome.admitted.at(0).cached_tokens, 8u) << "of what came after the reset";
  EXPECT_EQ(next.work.at(2).blocks.at(0), step.work.at(1).blocks.at(0));
}

TEST_F(BlockManagerStateTest, AWaitingSequenceFindsNothingFromBeforeAReset) {
  make_pool(3);
  peer_->release(compute_by_peer(counting(10, 8)));
  peer_takes(1);
  add(1, counting(10, 12));
  EXPECT_THAT(plan({.waiting = {1}, .budget = 0}).work, IsEmpty());
  reset_cache(*memory_);
  peer_gives_back();
  EXPECT_EQ(plan({.waiting = {1}}).outcome.admitted.at(0).cached_tokens, 0u);
}

TEST_F(BlockManagerStateTest, APreemptedSequenceIsLookedUpBehindTheReset) {
  make_pool(4);
  for (const std::uint64_t seq : {1, 2}) add(seq, counting(static_cast<TokenId>(seq * 50), 8));
  plan({.waiting = {1, 2}});
  for (const std::uint64_t seq : {1, 2}) append(seq, 9);
  reset_cache(*memory_);
  ASSERT_THAT(seqs(plan({.running = {1, 2}}).outcome.preempted), ElementsAre(2));
  append(1, 9);
  const StepPlan again = plan({.waiting = {2}, .ended = {1}});
  EXPECT_EQ(again.outcome.admitted.at(0).cached_tokens, 0u);
}

TEST_F(BlockManagerStateTest, ASequenceThatIsSwappedOutComesBackBehindAReset) {
  use_swap();
  make_pool(4, 8);
  for (const std::uint64_t seq : {1, 2}) add(seq, counting(static_cast<TokenId>(seq * 50), 8));
  plan({.waiting = {1, 2}});
  for (const std::uint64_t seq : {1, 2}) append(seq, 9);
  ASSERT_THAT(seqs(plan({.running = {1, 2}}).outcome.preempted), ElementsAre(2));
  reset_cache(*memory_);
  append(1, 9);
  plan({.running = {1}});
  EXPECT_EQ(plan({.waiting = {2}, .ended = {1}}).outcome.admitted.at(0).cached_tokens, 8u);
  append(2, 9);
  plan({.running = {2}});
  EXPECT_EQ(found_by_peer(counting(100, 8)), 0u) << "computed before the reset";
}

// -- drafts

TEST_F(BlockManagerStateTest, DraftsAreComputedBehindTheNewestToken) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  append(1, 77);
  guess(1, {78, 79});
  const StepPlan step = plan({.running = {1}});
  ASSERT_THAT(step.work, SizeIs(1));
  EXPECT_EQ(step.work[0].start, 4u);
  EXPECT_THAT(step.work[0].tokens, ElementsAre(77, 78, 79));
  EXPECT_EQ(step.work[0].drafts, 2u);
  EXPECT_TRUE(step.work[0].samples);
  EXPECT_EQ(step.outcome.scheduled_tokens, 3u);
}

TEST_F(BlockManagerStateTest, TheNextStepGoesOnBehindTheDraftsThatWereRight) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  append(1, 77);
  guess(1, {78, 79, 80});
  plan({.running = {1}});
  for (const TokenId token : {78, 79, 5}) append(1, token);  // the third was wrong
  const StepPlan next = plan({.running = {1}});
  EXPECT_EQ(next.work.at(0).start, 7u);
  EXPECT_THAT(next.work.at(0).tokens, ElementsAre(5));
  EXPECT_EQ(next.work.at(0).drafts, 0u);
  EXPECT_EQ(pool_->counters()["drafts"].load(), 1u);
  EXPECT_EQ(pool_->counters()["draft_tokens"].load(), 3u);
  EXPECT_EQ(pool_->counters()["accepted_draft_tokens"].load(), 2u);
}

/// vLLM: allocate_slots caches no token that is not verified.
TEST_F(BlockManagerStateTest, ADraftIsPublishedOnlyWhenItWasRight) {
  add(1, counting(10, 3));
  plan({.waiting = {1}});
  append(1, 13);
  guess(1, {14, 15, 16, 17, 18});
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(counting(10, 9)), 0u);
  for (const TokenId token : {14, 15, 16, 17, 99}) append(1, token);
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(counting(10, 9)), 2u) << "as soon as the step is done";

  add(2, counting(50, 3));
  plan({.running = {1}, .waiting = {2}});
  append(2, 53);
  guess(2, {54, 55, 56, 57, 58});
  plan({.running = {1, 2}});
  append(2, 99);
  plan({.running = {1, 2}});
  EXPECT_EQ(found_by_peer(counting(50, 9)), 1u);
}

TEST_F(BlockManagerStateTest, ARequestOfTheSameStepFindsNoGuess) {
  add(1, counting(10, 3));
  plan({.waiting = {1}});
  append(1, 13);
  guess(1, {14, 15, 16, 17});
  add(2, counting(10, 9));
  const StepPlan step = plan({.running = {1}, .waiting = {2}});
  EXPECT_EQ(step.outcome.admitted.at(0).cached_tokens, 4u);
}

/// vLLM: test_spec_decoding_stats_empty_output. Its request has ended meanwhile.
TEST_F(BlockManagerStateTest, AStepThatSampledNothingHadNoRightGuess) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  append(1, 77);
  guess(1, {78, 79});
  plan({.running = {1}});
  plan({.ended = {1}});
  EXPECT_EQ(pool_->counters()["draft_tokens"].load(), 2u);
  EXPECT_EQ(pool_->counters()["accepted_draft_tokens"].load(), 0u);
}

TEST_F(BlockManagerStateTest, TheBudgetCutsDrafts) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  append(1, 77);
  guess(1, {78, 79, 80});
  const StepPlan step = plan({.running = {1}, .budget = 2});
  EXPECT_THAT(step.work.at(0).tokens, ElementsAre(77, 78));
  EXPECT_EQ(step.work[0].drafts, 1u);
  for (const TokenId token : {78, 79}) append(1, token);
  EXPECT_THAT(plan({.running = {1}}).work.at(0).tokens, ElementsAre(79)) << "no old guess is left";
}

TEST_F(BlockManagerStateTest, GuessesThatWaitForTheBudgetAreComputedWithTheirToken) {
  for (const std::uint64_t seq : {1, 2}) add(seq, counting(static_cast<TokenId>(seq * 50), 4));
  plan({.waiting = {1, 2}});
  for (const std::uint64_t seq : {1, 2}) {
    append(seq, 9);
    guess(seq, {8, 7});
  }
  EXPECT_THAT(seqs(plan({.running = {1, 2}, .budget = 3}).work), ElementsAre(1));
  append(1, 5);
  const StepPlan step = plan({.running = {1, 2}});
  EXPECT_THAT(step.work.at(0).tokens, ElementsAre(5));
  EXPECT_THAT(step.work.at(1).tokens, ElementsAre(9, 8, 7));
}

TEST_F(BlockManagerStateTest, APreemptedSequenceLosesItsGuesses) {
  make_pool(5);
  expect_that_a_preempted_sequence_loses_its_guesses();
}

TEST_F(BlockManagerStateTest, ASequenceThatIsSwappedOutLosesItsGuesses) {
  use_swap();
  make_pool(5, 8);
  expect_that_a_preempted_sequence_loses_its_guesses();
}

TEST_F(BlockManagerStateTest, AStepWithNothingToDoIsEmpty) {
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  EXPECT_TRUE(plan({.ended = {1}}).is_empty());
}

TEST_F(BlockManagerStateTest, NoMoreThanMaxNumSeqsRun) {
  config_.max_num_seqs = 2;
  for (const std::uint64_t seq : {1, 2, 3}) add(seq, counting(static_cast<TokenId>(seq * 50), 4));
  EXPECT_THAT(seqs(plan({.waiting = {1, 2, 3}}).outcome.admitted), ElementsAre(1, 2));
  EXPECT_EQ(pool_->counters()["running"].load(), 2u);
  EXPECT_EQ(pool_->counters()["waiting"].load(), 1u);
  EXPECT_THAT(plan({.running = {1, 2}, .waiting = {3}}).outcome.admitted, IsEmpty());
  EXPECT_THAT(seqs(plan({.running = {2}, .waiting = {3}, .ended = {1}}).outcome.admitted),
              ElementsAre(3));
}

// -- admission

TEST_F(BlockManagerStateTest, AdmissionStopsAtTheFirstThatDoesNotFit) {
  make_pool(4);
  add(1, counting(10, 8));
  add(2, counting(50, 12));
  add(3, counting(90, 4));
  EXPECT_THAT(seqs(plan({.waiting = {1, 2, 3}}).outcome.admitted), ElementsAre(1));
  EXPECT_THAT(seqs(plan({.waiting = {2, 3}, .ended = {1}}).outcome.admitted), ElementsAre(2, 3));
}

TEST_F(BlockManagerStateTest, APromptIsAdmittedOnlyIfItFitsWholeNotJustItsFirstChunk) {
  make_pool(4);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  add(2, counting(50, 12));
  EXPECT_THAT(plan({.running = {1}, .waiting = {2}, .budget = 4}).outcome.admitted, IsEmpty());
}

TEST_F(BlockManagerStateTest, AFailedAdmissionKeepsTheReleaseOrder) {
  make_pool(5);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  plan({.ended = {1}});
  peer_takes(1);
  const auto before = pool_->free_queue(Tier::device);
  add(2, joined(counting(10, 8), counting(60, 12)));
  EXPECT_THAT(plan({.waiting = {2}}).outcome.admitted, IsEmpty());
  EXPECT_EQ(numbers(pool_->free_queue(Tier::device)), numbers(before));
}

TEST_F(BlockManagerStateTest, TheWatermarkStaysFreeUnlessNoSequenceRuns) {
  make_pool(10);
  config_.watermark = 0.2;
  add(1, counting(10, 4 * 9));
  EXPECT_THAT(seqs(plan({.waiting = {1}}).outcome.admitted), ElementsAre(1));
  plan({.ended = {1}});
  add(2, counting(100, 4 * 5));
  plan({.waiting = {2}});
  add(3, counting(200, 4 * 4));
  EXPECT_THAT(plan({.running = {2}, .waiting = {3}}).outcome.admitted, IsEmpty());
  add(4, counting(300, 4 * 3));
  EXPECT_THAT(seqs(plan({.running = {2}, .waiting = {4}}).outcome.admitted), ElementsAre(4));
}

TEST_F(BlockManagerStateTest, TheWatermarkIsForAdmissionNotForGrowth) {
  make_pool(4);
  config_.watermark = 0.5;
  add(1, counting(10, 4));
  plan({.waiting = {1}});
  peer_takes(2);
  append(1, 7);
  const StepPlan grown = plan({.running = {1}});
  EXPECT_THAT(seqs(grown.work), ElementsAre(1));
  EXPECT_THAT(grown.outcome.preempted, IsEmpty());
}

TEST_F(BlockManagerStateTest, RejectsAPromptThatNeverFitsAndGoesOnWithTheNext) {
  make_pool(3);
  add(1, counting(10, 13));
  add(2, counting(50, 12));
  const StepPlan first = plan({.waiting = {1, 2}});
  ASSERT_THAT(first.outcome.rejected, SizeIs(1));
  EXPECT_EQ(first.outcome.rejected[0].seq, SeqId{1});
  EXPECT_EQ(first.outcome.rejected[0].error.code, Errc::never_fits);
  EXPECT_THAT(first.outcome.rejected[0].error.text, HasSubstr("13 tokens"));
  EXPECT_THAT(first.outcome.rejected[0].error.text, HasSubstr("holds 12"));
  EXPECT_THAT(seqs(first.outcome.admitted), ElementsAre(2));
}

// -- sharing

TEST_F(BlockManagerStateTest, BlocksAreFoundOnlyAfterTheNextStepRequest) {
  const auto prompt = counting(10, 8);
  add(1, prompt);
  plan({.waiting = {1}});
  EXPECT_EQ(found_by_peer(prompt), 0u);
  append(1, 7);
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(prompt), 2u);
}

TEST_F(BlockManagerStateTest, OnlyFullBlocksThatAreComputedArePublished) {
  const auto prompt = counting(10, 11);
  add(1, prompt);
  plan({.waiting = {1}, .budget = 6});
  plan({.running = {1}, .budget = 4});
  EXPECT_EQ(found_by_peer(prompt), 1u);
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(prompt), 2u);
}

TEST_F(BlockManagerStateTest, GeneratedTokensFillBlocksThatAreSharedToo) {
  add(1, counting(10, 3));
  plan({.waiting = {1}});
  append(1, 70);
  plan({.running = {1}});
  append(1, 71);
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer({10, 11, 12, 70}), 1u);
}

TEST_F(BlockManagerStateTest, AnEndingSequencePublishesItsLastStepsBlocks) {
  const auto prompt = counting(10, 8);
  add(1, prompt);
  plan({.waiting = {1}});
  plan({.ended = {1}});
  EXPECT_EQ(found_by_peer(prompt), 2u);
  EXPECT_EQ(available(), 16u);
}

TEST_F(BlockManagerStateTest, ASequenceWithAHitSharesTheBlocksAndStartsAfterThem) {
  add(1, counting(10, 8));
  const StepPlan first = plan({.waiting = {1}});
  add(2, joined(counting(10, 8), counting(90, 3)));
  const StepPlan second = plan({.running = {1}, .waiting = {2}});
  ASSERT_THAT(seqs(second.work), ElementsAre(2));
  EXPECT_EQ(second.work[0].start, 8u);
  EXPECT_EQ(second.work[0].tokens, counting(90, 3));
  EXPECT_EQ(second.work[0].blocks[0], first.work[0].blocks[0]);
  EXPECT_EQ(second.work[0].blocks[1], first.work[0].blocks[1]);
  EXPECT_EQ(second.outcome.admitted.at(0).cached_tokens, 8u);
}

TEST_F(BlockManagerStateTest, AFullHitRecomputesTheWholeLastBlock) {
  add(1, counting(10, 8));
  const StepPlan first = plan({.waiting = {1}});
  add(2, counting(10, 8));
  const StepPlan second = plan({.running = {1}, .waiting = {2}});
  ASSERT_THAT(seqs(second.work), ElementsAre(2));
  EXPECT_EQ(second.work[0].start, 4u);
  EXPECT_EQ(second.work[0].tokens, counting(14, 4));
  EXPECT_NE(second.work[0].blocks[1], first.work[0].blocks[1]);
  EXPECT_TRUE(second.work[0].samples);
}

/// V0: test_prefix_caching_aware_prefills.
TEST_F(BlockManagerStateTest, WhatIsCachedTakesNothingOfTheBudget) {
  const auto shared = counting(10, 8);
  add(1, shared);
  plan({.waiting = {1}});
  append(1, 7);
  add(2, joined(shared, counting(50, 4)));
  add(3, joined(shared, counting(90, 4)));
  const StepPlan step = plan({.running = {1}, .waiting = {2, 3}, .budget = 1 + 4 + 4});
  ASSERT_THAT(seqs(step.work), ElementsAre(1, 2, 3));
  EXPECT_TRUE(step.work[2].samples) << "all of its prompt is computed";
}

/// vLLM: test_prefix_caching_for_multi_turn. The last token was sampled and never computed.
TEST_F(BlockManagerStateTest, TheNextTurnFindsThePromptAndTheAnswer) {
  const auto prompt = counting(10, 5), answer = counting(50, 8);
  add(1, prompt);
  plan({.waiting = {1}});
  for (std::size_t i = 0; i + 1 < answer.size(); ++i) {
    append(1, answer[i]);
    plan({.running = {1}});
  }
  append(1, answer.back());
  plan({.ended = {1}});
  add(2, joined(joined(prompt, answer), counting(90, 3)));
  EXPECT_EQ(plan({.waiting = {2}}).outcome.admitted.at(0).cached_tokens, 12u);
}

TEST_F(BlockManagerStateTest, WithPrefixCachingOffNothingIsPublishedAndNothingFound) {
  config_.prefix_caching = false;
  const auto prompt = counting(10, 8);
  add(1, prompt);
  plan({.waiting = {1}});
  add(2, prompt);
  const StepPlan second = plan({.running = {1}, .waiting = {2}});
  EXPECT_EQ(second.work.at(0).start, 0u);
  plan({.ended = {1, 2}});
  EXPECT_EQ(found_by_peer(prompt), 0u);
  EXPECT_EQ(pool_->counters()["queried_blocks"].load(), 0u);
  EXPECT_EQ(pool_->counters()["queried_tokens"].load(), 0u) << "nobody has looked anything up";
}

TEST_F(BlockManagerStateTest, AnotherDomainFindsNothing) {
  const auto prompt = counting(10, 8);
  add(1, prompt, DomainId{3});
  plan({.waiting = {1}});
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(prompt), 0u);
  EXPECT_EQ(found_by_peer(prompt, Tier::device, DomainId{3}), 2u);
}

constexpr ExtraKey kAlice{1, 2}, kBob{1, 3};

TEST_F(BlockManagerStateTest, SequencesOfTwoSaltsDoNotShareAndThoseOfOneDo) {
  const auto start_of = [this](std::uint64_t seq, const ExtraKey& salt) {
    add(seq, counting(10, 9));
    salt_it(salt);
    const StepPlan step = plan({.waiting = {seq}});
    plan({.ended = {seq}});
    return step.work.at(0).start;
  };
  EXPECT_EQ(start_of(1, kAlice), 0u);
  EXPECT_EQ(start_of(2, kNoExtraKey), 0u);
  EXPECT_EQ(start_of(3, kBob), 0u);
  for (const ExtraKey& salt : {kAlice, kNoExtraKey, kBob}) {
    EXPECT_EQ(start_of(4, salt), 8u);
    EXPECT_EQ(found_by_peer(counting(10, 9), Tier::device, {}, salt), 2u);
  }
}

/// Tokens that come later fill blocks behind the salted one; the blocks are found in pieces.
TEST_F(BlockManagerStateTest, BlocksBehindASaltedOneFollowFromIt) {
  add(1, counting(10, 6));
  salt_it(kAlice);
  plan({.waiting = {1}});
  for (TokenId token = 16; token < 23; ++token) {
    append(1, token);
    plan({.running = {1}});
  }
  plan({.ended = {1}});
  EXPECT_EQ(found_by_peer(counting(10, 12), Tier::device, {}, kAlice), 3u);
  EXPECT_EQ(found_by_peer(counting(10, 12)), 0u);
  EXPECT_EQ(found_by_peer(counting(10, 12), Tier::device, {}, kBob), 0u);
  add(2, counting(10, 13));
  salt_it(kAlice);
  EXPECT_EQ(plan({.waiting = {2}}).work.at(0).start, 12u);
}

TEST_F(BlockManagerStateTest, SequencesOfTwoDomainsDoNotShareAndThoseOfOneDo) {
  const auto prompt = counting(10, 9);
  add(1, prompt, DomainId{3});
  plan({.waiting = {1}});
  plan({.running = {1}});
  add(2, prompt, DomainId{4});
  add(3, prompt, DomainId{3});
  const StepPlan both = plan({.running = {1}, .waiting = {2, 3}});
  ASSERT_EQ(both.work.size(), 2u);
  EXPECT_EQ(both.work[0].start, 0u);
  EXPECT_EQ(both.work[1].start, 8u);
  plan({.ended = {1, 2, 3}});
  EXPECT_EQ(found_by_peer(prompt, Tier::device, DomainId{4}), 2u)
      << "domain 4 computed the prompt itself";
}

TEST_F(BlockManagerStateTest, SwappedOutBlocksStayInTheirDomain) {
  make_pool(4, 4);
  use_swap();
  const auto prompt = counting(10, 9);
  add(1, prompt, DomainId{3});
  plan({.waiting = {1}});
  append(1, 50);
  peer_takes(available());
  for (TokenId token = 51; token < 54; ++token) {
    plan({.running = {1}});
    append(1, token);
  }
  const StepPlan out = plan({.running = {1}});
  ASSERT_EQ(out.outcome.preempted.size(), 1u);
  plan({});
  EXPECT_EQ(found_by_peer(prompt, Tier::host, DomainId{3}), 2u);
  EXPECT_EQ(found_by_peer(prompt, Tier::host), 0u);
}

// -- preemption by recompute

TEST_F(BlockManagerStateTest, PreemptsInTheGivenOrderUntilAllFitsAndThenAdmitsNone) {
  make_pool(4);
  for (const std::uint64_t seq : {1, 2, 3}) add(seq, counting(static_cast<TokenId>(seq * 50), 4));
  plan({.waiting = {1, 2, 3}});
  peer_takes(1);
  append(1, 7);
  add(4, {1});
  const StepPlan second = plan({.running = {1, 2, 3}, .waiting = {4}});
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(3));
  EXPECT_THAT(seqs(second.work), ElementsAre(1));
  EXPECT_THAT(second.outcome.admitted, IsEmpty());
  EXPECT_THAT(seqs(plan({.running = {1, 2}, .ended = {3}}).work), IsEmpty());
}

/// vLLM: test_priority_scheduling_no_preemption_when_space_available, and without the space.
TEST_F(BlockManagerStateTest, NobodyIsPreemptedForWhatWaits) {
  make_pool(4);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  append(1, 7);
  add(2, counting(50, 8));
  add(3, counting(90, 4));
  const StepPlan full = plan({.running = {1}, .waiting = {2}});
  EXPECT_THAT(seqs(full.work), ElementsAre(1));
  EXPECT_THAT(full.outcome.preempted, IsEmpty());
  append(1, 8);
  const StepPlan fits = plan({.running = {1}, .waiting = {3, 2}});
  EXPECT_THAT(seqs(fits.work), ElementsAre(1, 3));
  EXPECT_THAT(fits.outcome.preempted, IsEmpty());
}

TEST_F(BlockManagerStateTest, AVictimServedInTheSameStepLosesItsWorkAndRefundsItsTokens) {
  make_pool(4);
  add(1, counting(10, 4));
  add(2, counting(50, 8));
  plan({.waiting = {1, 2}});
  append(1, 7);
  plan({.running = {1, 2}});
  append(1, 8);
  append(2, 9);
  // The budget is 2 tokens: both are served only if the victim's token is refunded.
  add(3, counting(90, 4));
  const StepPlan third = plan({.running = {1, 2}, .waiting = {3}, .budget = 2, .victims = {1, 2}});
  EXPECT_THAT(seqs(third.outcome.preempted), ElementsAre(1));
  EXPECT_THAT(seqs(third.work), ElementsAre(2));
  EXPECT_EQ(third.outcome.scheduled_tokens, 1u);
}

TEST_F(BlockManagerStateTest, TheRefundedTokensServeOthers) {
  make_pool(3);
  add(1, counting(10, 3));
  add(2, counting(50, 4));
  add(3, counting(90, 3));
  plan({.waiting = {1, 2, 3}});
  for (const std::uint64_t seq : {1, 2, 3}) append(seq, 7);
  // 1 is served and then preempted for 2; its token goes to 3.
  const StepPlan second = plan({.running = {1, 2, 3}, .budget = 2, .victims = {1, 3, 2}});
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(1));
  EXPECT_THAT(seqs(second.work), ElementsAre(2, 3));
}

TEST_F(BlockManagerStateTest, PreemptsItselfWhenItIsTheLastInOrder) {
  make_pool(2);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  append(1, 7);
  const StepPlan second = plan({.running = {1}, .waiting = {}});
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(1));
  EXPECT_THAT(second.work, IsEmpty());
  EXPECT_EQ(available(), 2u);
  const StepPlan third = plan({.waiting = {1}});
  EXPECT_THAT(third.outcome.rejected, SizeIs(1));
}

TEST_F(BlockManagerStateTest, TheLastSequencePreemptsItselfRatherThanOneBeforeIt) {
  make_pool(2);
  add(1, counting(10, 4));
  add(2, counting(50, 4));
  plan({.waiting = {1, 2}});
  append(2, 7);
  const StepPlan second = plan({.running = {1, 2}});
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(second.work, IsEmpty());
}

TEST_F(BlockManagerStateTest, ARecomputedSequenceFindsTheBlocksItHadPublished) {
  make_pool(4);
  add(1, counting(10, 4));
  add(2, counting(50, 10));
  plan({.waiting = {1, 2}});
  append(1, 7);
  append(2, 8);
  const StepPlan second = plan({.running = {1, 2}});
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(2));
  const StepPlan third = plan({.waiting = {2}, .ended = {1}});
  ASSERT_THAT(seqs(third.work), ElementsAre(2));
  EXPECT_EQ(third.work[0].start, 8u);
  EXPECT_EQ(third.work[0].tokens, (std::vector<TokenId>{58, 59, 8}));
}

// -- preemption by swap

class BlockManagerStateSwap : public BlockManagerStateTest {
 protected:
  /// Sequence 1 holds one block, 2 holds three (10 tokens), and the pool is full. 1 needs a block.
  StepPlan preempt_second(const ExtraKey& salt = kNoExtraKey) {
    add(1, counting(10, 4));
    add(2, counting(50, 10));
    salt_it(salt);
    plan({.waiting = {1, 2}});
    append(1, 7);
    append(2, 8);
    return plan({.running = {1, 2}});
  }
};

TEST_F(BlockManagerStateSwap, CopiesComputedBlocksOutAndReleasesThemWithTheNextStep) {
  use_swap();
  make_pool(4, 8);
  const StepPlan second = preempt_second();
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(second.swap_out, SizeIs(3));
  EXPECT_THAT(second.work, IsEmpty());  // sequence 1 has to wait for the blocks
  EXPECT_EQ(available(), 0u);           // the copies still read the blocks
  EXPECT_EQ(available(Tier::host), 5u);
  EXPECT_EQ(pool_->counters()["preemptions_swap"].load(), 1u);

  const StepPlan third = plan({.running = {1}});
  EXPECT_THAT(seqs(third.work), ElementsAre(1));
  EXPECT_EQ(available(), 2u);
}

TEST_F(BlockManagerStateSwap, ASwappedOutSequenceGoesOnWhereItStopped) {
  use_swap();
  make_pool(4, 8);
  const StepPlan out = preempt_second();
  plan({.running = {1}});
  // Evicts sequence 2's content from the device, or it would be found there.
  peer_takes(2);
  peer_gives_back();
  const StepPlan in = plan({.waiting = {2}, .ended = {1}});
  ASSERT_THAT(seqs(in.work), ElementsAre(2));
  EXPECT_EQ(in.work[0].start, 10u);
  EXPECT_THAT(in.work[0].tokens, ElementsAre(8));
  ASSERT_THAT(in.work[0].blocks, SizeIs(3));
  std::map<std::uint32_t, std::uint32_t> sources;
  for (const BlockPair& pair : in.swap_in) sources[pair.destination] = pair.source;
  // Its first block may still be on the device; the last one comes from the host.
  EXPECT_EQ(sources.at(in.work[0].blocks[2].value), out.swap_out[2].destination);
  EXPECT_EQ(in.outcome.admitted.at(0).cached_tokens, 10u);
  EXPECT_LT(available(Tier::host), 8u);  // the copies still read the blocks
  append(2, 9);
  plan({.running = {2}});
  EXPECT_EQ(available(Tier::host), 8u);
}

TEST_F(BlockManagerStateSwap, WhatIsStillOnTheDeviceNeedsNoRoomWhenASequenceComesBack) {
  use_swap();
  make_pool(5, 8);
  peer_takes(1);
  preempt_second();
  plan({.running = {1}});
  peer_gives_back();
  // Two of its three blocks are there, and one is free.
  ASSERT_EQ(available(), 3u);
  EXPECT_THAT(seqs(plan({.running = {1}, .waiting = {2}}).outcome.admitted), ElementsAre(2));
}

/// V0: test_schedule_swapped_cannot_swap_in, and can_swap_in that says LATER.
TEST_F(BlockManagerStateSwap, ASwappedOutSequenceWaitsUntilThereIsRoomForIt) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  for (TokenId token = 20; token < 23; ++token) {
    const StepPlan step = plan({.running = {1}, .waiting = {2}});
    EXPECT_THAT(seqs(step.work), ElementsAre(1));
    EXPECT_THAT(step.swap_in, IsEmpty());
    EXPECT_THAT(step.outcome.preempted, IsEmpty());
    EXPECT_EQ(available(Tier::host), 5u) << "its copies stay";
    append(1, token);
  }
  const StepPlan in = plan({.waiting = {2}, .ended = {1}});
  ASSERT_THAT(seqs(in.work), ElementsAre(2));
  EXPECT_EQ(in.work[0].start, 10u);
}

/// V0: test_infeasible_swap and test_swap_in_infeasible: can_swap_in says NEVER.
TEST_F(BlockManagerStateSwap, ASwappedOutSequenceThatHasOutgrownThePoolIsRejected) {
  use_swap();
  make_pool(2, 4);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  append(1, 7);
  EXPECT_THAT(plan({.running = {1}}).swap_out, SizeIs(2));
  const StepPlan step = plan({.waiting = {1}});
  EXPECT_THAT(step.swap_in, IsEmpty());
  ASSERT_THAT(step.outcome.rejected, SizeIs(1));
  EXPECT_EQ(step.outcome.rejected[0].error.code, Errc::never_fits);
  plan({.ended = {1}});
  EXPECT_EQ(available(Tier::host), 4u);
}

TEST_F(BlockManagerStateSwap, OtherProcessesFindTheCopiesOnceTheyAreMade) {
  use_swap();
  make_pool(4, 8);
  const auto prompt = counting(50, 10);
  preempt_second();
  EXPECT_EQ(found_by_peer(prompt, Tier::host), 0u);
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(prompt, Tier::host), 2u);
}

TEST_F(BlockManagerStateSwap, ASaltIsKeptThroughTheHostTier) {
  use_swap();
  make_pool(4, 8);
  ASSERT_THAT(preempt_second(kAlice).swap_out, SizeIs(3));
  plan({.running = {1}});
  const auto prompt = counting(50, 10);
  EXPECT_EQ(found_by_peer(prompt, Tier::host, {}, kAlice), 2u);
  EXPECT_EQ(found_by_peer(prompt, Tier::host), 0u);
  peer_takes(2);
  peer_gives_back();
  const StepPlan in = plan({.waiting = {2}, .ended = {1}});
  EXPECT_EQ(in.outcome.admitted.at(0).cached_tokens, 10u);
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(prompt, Tier::device, {}, kAlice), 2u);
  add(3, prompt);
  EXPECT_EQ(plan({.waiting = {3}}).work.at(0).start, 0u) << "without the salt";
}

TEST_F(BlockManagerStateSwap, ThePartialLastBlockIsCopiedButNeverFound) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  plan({.running = {1}});
  EXPECT_EQ(found_by_peer(joined(counting(50, 10), std::vector<TokenId>{8, 9}), Tier::host), 2u);
}

TEST_F(BlockManagerStateSwap, ANewPromptIsBroughtInFromTheHostTier) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  plan({.running = {1}});
  plan({.ended = {1, 2}});
  peer_takes(4);  // evicts all content of the device tier
  peer_gives_back();
  add(3, joined(counting(50, 8), counting(90, 2)));
  const StepPlan in = plan({.waiting = {3}});
  EXPECT_THAT(in.swap_in, SizeIs(2));
  ASSERT_THAT(seqs(in.work), ElementsAre(3));
  EXPECT_EQ(in.work[0].start, 8u);
  EXPECT_EQ(in.outcome.admitted.at(0).cached_tokens, 8u);
  // Published only after the copy is known to be done.
  EXPECT_EQ(found_by_peer(counting(50, 8)), 0u);
  append(3, 1);
  plan({.running = {3}});
  EXPECT_EQ(found_by_peer(counting(50, 8)), 2u);
}

TEST_F(BlockManagerStateSwap, BlocksInTheHostTierAreNotCopiedAgain) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  plan({.running = {1}});
  plan({.waiting = {2}, .ended = {1}});
  append(2, 9);
  plan({.running = {2}});
  peer_takes(1);
  add(1, counting(10, 1));
  for (const TokenId token : {5, 6, 7}) append(2, token);  // overfills the device
  const StepPlan again = plan({.running = {2}});
  EXPECT_THAT(seqs(again.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(again.swap_out, SizeIs(1));  // the host tier has the first two already
}

TEST_F(BlockManagerStateSwap, FallsBackToRecomputeWhenTheHostTierIsFull) {
  use_swap();
  make_pool(4, 2);
  const StepPlan second = preempt_second();
  EXPECT_THAT(seqs(second.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(second.swap_out, IsEmpty());
  EXPECT_THAT(seqs(second.work), ElementsAre(1));
  EXPECT_EQ(available(Tier::host), 2u);
  EXPECT_EQ(pool_->counters()["preemptions_recompute"].load(), 1u);
  EXPECT_EQ(pool_->counters()["preemptions_swap"].load(), 0u);
}

TEST_F(BlockManagerStateSwap, WithoutPrefixCachingASwappedOutSequenceStillGoesOn) {
  use_swap();
  config_.prefix_caching = false;
  make_pool(4, 8);
  preempt_second();
  plan({.running = {1}});
  const StepPlan in = plan({.waiting = {2}, .ended = {1}});
  EXPECT_THAT(in.swap_in, SizeIs(3));
  EXPECT_EQ(in.work.at(0).start, 10u);
  EXPECT_EQ(found_by_peer(counting(50, 8), Tier::host), 0u);
}

TEST_F(BlockManagerStateSwap, AnAbortWhileBeingSwappedOutReleasesBothTiers) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  plan({.ended = {1, 2}});  // right after the copy was ordered
  EXPECT_EQ(available(), 4u);
  EXPECT_EQ(available(Tier::host), 8u);
}

TEST_F(BlockManagerStateSwap, AnAbortWhileBeingSwappedInReleasesBothTiers) {
  use_swap();
  make_pool(4, 8);
  preempt_second();
  plan({.running = {1}});
  plan({.waiting = {2}, .ended = {1}});
  plan({.ended = {2}});
  EXPECT_EQ(available(), 4u);
  EXPECT_EQ(available(Tier::host), 8u);
}

// -- demotion of evicted blocks

class BlockManagerStateDemotion : public BlockManagerStateTest {
 protected:
  /// Makes the plan's copies, as the swapper does.
  void carry_out(const StepPlan& plan) { EXPECT_TRUE(SwapperState(*memory_).move(plan)); }

  /// Leaves two of the four device blocks published and idle with `tokens`, the others free.
  void leave(const std::vector<TokenId>& tokens, DomainId domain = {}) {
    add(1, tokens, domain);
    plan({.waiting = {1}});
    plan({.ended = {1}});
  }
  /// Plans a prompt that needs all four device blocks.
  StepPlan press(DomainId domain = {}) {
    add(2, counting(200, 13), domain);
    return plan({.waiting = {2}});
  }
  const std::vector<TokenId> kPrompt = counting(10, 9);
};

TEST_F(BlockManagerStateDemotion, EvictedBlocksAreCopiedOutInTheStepThatEvictsThem) {
  make_pool(4, 8);
  leave(kPrompt);
  const StepPlan step = press();
  ASSERT_THAT(seqs(step.work), ElementsAre(2));
  ASSERT_THAT(step.demotions, SizeIs(2));
  EXPECT_EQ(step.demotions[0].source, step.work[0].blocks[2].value)
      << "the end of a sequence is evicted first";
  EXPECT_EQ(step.demotions[1].source, step.work[0].blocks[3].value);
  EXPECT_THAT(step.domain_changes, IsEmpty());
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 0u) << "the copies are not made yet";
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 2u);
  EXPECT_EQ(found_by_peer(kPrompt), 0u);
  EXPECT_EQ(pool_->counters()["demoted_blocks"].load(), 2u);
}

TEST_F(BlockManagerStateDemotion, ALaterPromptCopiesDemotedBlocksBack) {
  make_pool(4, 8);
  leave(kPrompt);
  const StepPlan out = press();
  plan({.ended = {2}});
  add(3, kPrompt);
  const StepPlan in = plan({.waiting = {3}});
  ASSERT_THAT(seqs(in.work), ElementsAre(3));
  EXPECT_EQ(in.work[0].start, 8u);
  ASSERT_THAT(in.swap_in, SizeIs(2));
  EXPECT_EQ(in.swap_in[0].source, out.demotions[1].destination);
  EXPECT_EQ(in.swap_in[1].source, out.demotions[0].destination);
  EXPECT_EQ(in.outcome.admitted.at(0).cached_tokens, 8u);
  EXPECT_EQ(pool_->counters()["promoted_blocks"].load(), 2u);
  plan({.running = {3}});
  EXPECT_EQ(found_by_peer(kPrompt), 2u);
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 2u);
}

TEST_F(BlockManagerStateDemotion, ASaltIsKeptThroughDemotionAndBack) {
  make_pool(4, 8);
  add(1, kPrompt);
  salt_it(kAlice);
  plan({.waiting = {1}});
  plan({.ended = {1}});
  press();
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host, {}, kAlice), 2u);
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 0u);
  add(3, kPrompt);
  salt_it(kBob);
  EXPECT_EQ(plan({.waiting = {3}}).work.at(0).start, 0u);
  plan({.ended = {3}});
  add(4, kPrompt);
  salt_it(kAlice);
  const StepPlan in = plan({.waiting = {4}});
  EXPECT_EQ(in.work.at(0).start, 8u);
  EXPECT_EQ(pool_->counters()["hit_tokens_host"].load(), 8u);
  EXPECT_THAT(in.swap_in, SizeIs(2));
  plan({.running = {4}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::device, {}, kAlice), 2u);
}

TEST_F(BlockManagerStateDemotion, PromotedBlocksAreNotCopiedOutAgain) {
  make_pool(4, 8);
  leave(kPrompt);
  press();
  plan({.ended = {2}});
  leave(kPrompt);
  add(2, counting(300, 13));
  const StepPlan again = plan({.waiting = {2}});
  EXPECT_EQ(seqs(again.work).size(), 1u);
  // The host tier has the blocks of `kPrompt`, but not those of sequence 2.
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 2u);
  EXPECT_EQ(pool_->counters()["demoted_blocks"].load(), 2u + 3u);
}

TEST_F(BlockManagerStateDemotion, ABlockMayBeDemotedAndFilledFromTheHostInOneStep) {
  make_pool(4, 8);
  leave(kPrompt);
  press();
  plan({.ended = {2}});
  add(3, joined(counting(10, 8), counting(300, 8)));
  const StepPlan step = plan({.waiting = {3}});
  EXPECT_THAT(step.swap_in, SizeIs(2));
  EXPECT_THAT(step.demotions, SizeIs(3));
  plan({.ended = {3}});
  EXPECT_EQ(found_by_peer(counting(200, 13), Tier::host), 3u);
}

TEST_F(BlockManagerStateDemotion, NoBlockIsDemotedIfACopyCostsMoreThanComputing) {
  make_pool(4, 8);
  manager().copy_policy().set(100, 1);
  leave(kPrompt);
  EXPECT_THAT(press().demotions, IsEmpty());
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host), 0u);
}

TEST_F(BlockManagerStateDemotion, NoBlockIsPromotedIfACopyCostsMoreThanComputing) {
  make_pool(4, 8);
  leave(kPrompt);
  press();
  plan({.ended = {2}});
  manager().copy_policy().set(100, 1);
  add(3, kPrompt);
  const StepPlan step = plan({.waiting = {3}});
  EXPECT_THAT(step.swap_in, IsEmpty());
  EXPECT_EQ(step.work.at(0).start, 0u);
}

class BlockManagerStateAuto : public BlockManagerStateTest {
 protected:
  /// Of two sequences with eight tokens in two blocks, one is preempted.
  StepPlan preempt_one(double block_copy, double token) {
    config_.preemption = PreemptionMode::automatic;
    make_pool(4, 8);
    manager().copy_policy().set(block_copy, token);
    for (const std::uint64_t seq : {1, 2}) add(seq, counting(static_cast<TokenId>(seq * 50), 8));
    plan({.waiting = {1, 2}});
    for (const std::uint64_t seq : {1, 2}) append(seq, 9);
    StepPlan step = plan({.running = {1, 2}});
    EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(2));
    return step;
  }
};

TEST_F(BlockManagerStateAuto, SwapsWhatFourCopiesCostNoMoreThan) {
  EXPECT_THAT(preempt_one(8, 4).swap_out, SizeIs(2));
  EXPECT_EQ(pool_->counters()["preemptions_swap"].load(), 1u);
}

TEST_F(BlockManagerStateAuto, ComputesAgainWhatFourCopiesCostMoreThan) {
  EXPECT_THAT(preempt_one(8.1, 4).swap_out, IsEmpty());
  EXPECT_EQ(pool_->counters()["preemptions_recompute"].load(), 1u);
}

TEST_F(BlockManagerStateDemotion, ASwappedOutSequenceIsCopiedBackAtAnyCost) {
  use_swap();
  make_pool(4, 8);
  manager().copy_policy().set(100, 1);
  add(1, counting(10, 4));
  add(2, counting(50, 10));
  plan({.waiting = {1, 2}});
  append(1, 7);
  append(2, 8);
  EXPECT_THAT(plan({.running = {1, 2}}).swap_out, SizeIs(3));
  plan({.running = {1}});
  EXPECT_EQ(plan({.waiting = {2}, .ended = {1}}).work.at(0).start, 10u);
}

TEST_F(BlockManagerStateDemotion, CopyCostsAreLearntFromEarlierSteps) {
  make_pool(4, 8);
  leave(kPrompt);
  press();
  StepDone done;
  done.times = {.copying = 3, .computing = 26};
  manager().finish_step(done);
  EXPECT_EQ(manager().copy_policy().block_copy(), 1.5);
  EXPECT_EQ(manager().copy_policy().token(), 2);
}

TEST_F(BlockManagerStateDemotion, BlocksThatChangeTheirDomainAreHandedOverAfterTheyWereCopied) {
  make_pool(4, 8);
  const DomainId theirs{1}, ours{2};
  leave(kPrompt, theirs);
  const StepPlan step = press(ours);
  ASSERT_THAT(step.domain_changes, SizeIs(2));
  for (const auto& [block, to] : step.domain_changes) {
    EXPECT_EQ(pool_->domain_of(block), theirs);
    EXPECT_EQ(to, ours);
  }
  carry_out(step);
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host, theirs), 2u);
  EXPECT_EQ(found_by_peer(kPrompt, Tier::host, ours), 0u);
  EXPECT_EQ(found_by_peer(counting(200, 13), Tier::device, ours), 3u);
}

TEST_F(BlockManagerStateDemotion, BlocksAreHandedOverEvenIfNoneIsCopied) {
  make_pool(4, 8);
  manager().copy_policy().set(100, 1);
  leave(kPrompt, DomainId{1});
  const StepPlan step = press(DomainId{2});
  EXPECT_THAT(step.demotions, IsEmpty());
  EXPECT_THAT(step.domain_changes, SizeIs(2));
  carry_out(step);
  plan({.ended = {2}});
  EXPECT_EQ(found_by_peer(counting(200, 13), Tier::device, DomainId{2}), 3u);
}

TEST_F(BlockManagerStateDemotion, ABlockReleasedInTheSameStepIsNotDemoted) {
  make_pool(4, 8);
  leave(counting(10, 5));  // one block
  add(2, counting(50, 4));
  add(3, counting(90, 8));
  plan({.waiting = {2, 3}});  // the fourth block is idle
  append(2, 7);
  append(3, 8);
  // Sequence 2 gets the idle block and is then preempted, because 3 needs a block, too.
  const StepPlan step = plan({.running = {2, 3}, .victims = {2}});
  EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(seqs(step.work), ElementsAre(3));
  EXPECT_THAT(step.demotions, IsEmpty());
  plan({.running = {3}});
  EXPECT_EQ(found_by_peer(counting(10, 5), Tier::host), 0u);
}

TEST_F(BlockManagerStateDemotion, PreemptionBySwapEvictsDemotedBlocks) {
  use_swap();
  make_pool(4, 3);
  leave(kPrompt);
  press();
  plan({.ended = {2}});
  add(3, counting(10, 4));
  add(4, counting(50, 10));
  plan({.waiting = {3, 4}});
  append(3, 7);
  append(4, 8);
  const StepPlan step = plan({.running = {3, 4}});
  EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(4));
  EXPECT_THAT(step.swap_out, SizeIs(3));
  EXPECT_EQ(pool_->counters()["preemptions_swap"].load(), 1u);
}

TEST_F(BlockManagerStateDemotion, WithoutPrefixCachingNothingIsKept) {
  make_pool(4, 8);
  peer_->release(compute_by_peer(kPrompt));
  config_.prefix_caching = false;
  EXPECT_THAT(press().demotions, IsEmpty());
}

// -- aborts and counters

TEST_F(BlockManagerStateTest, AnEndWhileComputingOrWaitingReleasesAllBlocks) {
  make_pool(4);
  add(1, counting(10, 8));   // computing
  add(2, counting(50, 12));  // waiting, and known to the block manager
  plan({.waiting = {1, 2}, .budget = 5});
  plan({.ended = {1, 2}});
  EXPECT_EQ(available(), 4u);
}

TEST_F(BlockManagerStateTest, CountersCountLookupsHitsAndTokens) {
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  append(1, 7);
  add(2, counting(10, 9));
  plan({.running = {1}, .waiting = {2}});
  SlotCounters& counters = pool_->counters();
  EXPECT_EQ(counters["queried_blocks"].load(), 1u + 2u) << "a last token's block is not looked up";
  EXPECT_EQ(counters["hit_blocks"].load(), 2u);
  EXPECT_EQ(counters["prompt_tokens"].load(), 17u);
  EXPECT_EQ(counters["cached_tokens"].load(), 8u);
  EXPECT_EQ(counters["generated_tokens"].load(), 1u);
  EXPECT_EQ(counters["running"].load(), 2u);
}

TEST_F(BlockManagerStateTest, FoundTokensAreCountedByWhoComputedThem) {
  make_pool(16);
  peer_->release(compute_by_peer(counting(10, 8)));
  add(1, joined(counting(10, 8), counting(90, 5)));
  plan({.waiting = {1}});  // finds two blocks of the peer's, computes a third
  plan({.ended = {1}});
  add(2, joined(counting(10, 8), counting(90, 5)));
  plan({.waiting = {2}});  // finds all three
  SlotCounters& counters = pool_->counters();
  EXPECT_EQ(counters["hit_tokens_sibling"].load(), 8u + 8u);
  EXPECT_EQ(counters["hit_tokens_own"].load(), 4u);
  EXPECT_EQ(counters["hit_tokens_host"].load(), 0u);
  EXPECT_EQ(counters["cached_tokens"].load(), 20u);
  EXPECT_EQ(counters["failover_recomputed_tokens"].load(), 0u);
}

/// The block has new content of another process: it is nobody's own because it once was.
TEST_F(BlockManagerStateTest, ABlockThatWasOwnAndHasOthersContentNowIsTheirs) {
  make_pool(2);
  add(1, counting(10, 8));
  plan({.waiting = {1}});
  plan({.ended = {1}});
  peer_->release(compute_by_peer(counting(50, 8)));  // takes both blocks
  add(2, joined(counting(50, 4), counting(90, 1)));
  plan({.waiting = {2}});
  EXPECT_EQ(pool_->counters()["hit_tokens_sibling"].load(), 4u);
  EXPECT_EQ(pool_->counters()["hit_tokens_own"].load(), 0u);
}

/// Once, however often the request is admitted; and not what was found.
TEST_F(BlockManagerStateTest, WhatADeadEngineHadComputedIsCountedWhenItIsComputedAgain) {
  make_pool(4);
  peer_->release(compute_by_peer(counting(10, 8)));
  add(1, counting(10, 11));
  say_it_was_admitted_before(10);
  add(2, counting(50, 4));
  plan({.waiting = {1, 2}});
  SlotCounters& counters = pool_->counters();
  EXPECT_EQ(counters["failover_recomputed_tokens"].load(), 10u - 8u);
  EXPECT_EQ(counters["hit_tokens_sibling"].load(), 0u) << "the dead engine has counted its prompt";
  append(2, 7);
  ASSERT_THAT(seqs(plan({.running = {2, 1}, .victims = {1}}).outcome.preempted), ElementsAre(1));
  plan({.waiting = {1}, .ended = {2}});
  EXPECT_EQ(counters["failover_recomputed_tokens"].load(), 2u);
}

TEST_F(BlockManagerStateTest, TheLastTokenOfARequestIsCountedToo) {
  add(1, counting(10, 3));
  plan({.waiting = {1}});
  append(1, 7);
  plan({.running = {1}});
  finish_sampling(1);
  plan({.ended = {1}});
  EXPECT_EQ(pool_->counters()["generated_tokens"].load(), 2u);
}

TEST_F(BlockManagerStateTest, ALookupIsCountedOnceHoweverOftenAdmissionIsTried) {
  make_pool(4);
  peer_->release(compute_by_peer(counting(10, 8)));
  add(1, counting(50, 12));
  plan({.waiting = {1}});
  add(2, joined(counting(10, 8), counting(90, 4)));
  for (int i = 0; i < 5; ++i) plan({.running = {1}, .waiting = {2}});  // no room
  SlotCounters& counters = pool_->counters();
  EXPECT_EQ(counters["queried_blocks"].load(), 2u) << "only the first request's lookup is counted";
  EXPECT_EQ(counters["prompt_tokens"].load(), 12u);
  plan({.waiting = {2}, .ended = {1}});
  EXPECT_EQ(counters["queried_blocks"].load(), 2u + 2u);
  EXPECT_EQ(counters["prompt_tokens"].load(), 12u + 12u);
}

TEST_F(BlockManagerStateTest, WhatIsFoundIsUsedOnceTheRequestIsAdmitted) {
  make_pool(4);
  const auto uses = [&] {
    std::uint64_t all = 0;
    for (std::uint32_t id = 0; id <= 4; ++id) all += memory_->lives()[id].uses.load();
    return all;
  };
  peer_->release(compute_by_peer(counting(10, 8)));
  add(1, counting(50, 8));
  plan({.waiting = {1}});
  add(2, joined(counting(10, 8), counting(90, 4)));
  for (int i = 0; i < 5; ++i) plan({.running = {1}, .waiting = {2}});  // no room
  EXPECT_EQ(uses(), 0u);
  plan({.waiting = {2}, .ended = {1}});
  EXPECT_EQ(uses(), 2u);
}

TEST_F(BlockManagerStateTest, APreemptedRequestIsNotCountedAgain) {
  make_pool(4);
  add(1, counting(10, 8));
  add(2, counting(50, 8));
  plan({.waiting = {1, 2}});
  SlotCounters& counters = pool_->counters();
  const auto counted = [&] {
    return std::array{counters["queried_blocks"].load(), counters["hit_blocks"].load(),
                      counters["prompt_tokens"].load(), counters["cached_tokens"].load()};
  };
  const auto before = counted();
  append(1, 7);
  ASSERT_EQ(plan({.running = {1, 2}}).outcome.preempted.size(), 1u);
  ASSERT_EQ(plan({.waiting = {2}, .ended = {1}}).outcome.admitted.size(), 1u);
  EXPECT_EQ(counted(), before);
}

TEST_F(BlockManagerStateTest, ARequestThatADeadEngineAdmittedIsNotCountedAgain) {
  add(1, counting(10, 9));
  say_it_was_admitted_before();
  plan({.waiting = {1}});
  SlotCounters& counters = pool_->counters();
  EXPECT_EQ(counters["queried_blocks"].load(), 0u);
  EXPECT_EQ(counters["prompt_tokens"].load(), 0u);
}

// -- shares of the blocks

constexpr DomainId kLimited{1}, kSure{2};

TEST_F(BlockManagerStateTest, ADomainAtItsMaximumPreemptsItsOwnRequestsOnly) {
  limits_[kLimited.value].max = 4;
  make_pool(16);
  add(1, counting(10, 8), kLimited);
  add(2, counting(50, 8), kLimited);
  add(3, counting(90, 8));
  plan({.waiting = {1, 2, 3}});
  append(1, 7);
  // 3 was admitted last, and would be preempted first.
  const StepPlan step = plan({.running = {1, 2, 3}});
  EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(step.outcome.at_maximum, ElementsAre(kLimited));
  EXPECT_THAT(seqs(step.work), ElementsAre(1));
}

TEST_F(BlockManagerStateTest, ADomainAtItsMaximumKeepsNobodyElseWaiting) {
  limits_[kLimited.value].max = 3;
  make_pool(16);
  add(1, counting(10, 8), kLimited);
  add(2, counting(50, 8), kLimited);
  add(3, counting(70, 4), kLimited);
  add(4, counting(90, 8));
  const StepPlan step = plan({.waiting = {1, 2, 3, 4}});
  EXPECT_THAT(seqs(step.outcome.admitted), ElementsAre(1, 4))
      << "within the domain in order: 3 would fit, but comes after 2";
  EXPECT_THAT(step.outcome.at_maximum, ElementsAre(kLimited));
  const StepPlan later = plan({.running = {4}, .waiting = {2, 3}, .ended = {1}});
  EXPECT_THAT(seqs(later.outcome.admitted), ElementsAre(2, 3));
  EXPECT_THAT(later.outcome.at_maximum, IsEmpty());
}

TEST_F(BlockManagerStateTest, APreemptionForAMaximumDoesNotDelayOthers) {
  limits_[kLimited.value].max = 4;
  make_pool(16);
  add(1, counting(10, 8), kLimited);
  add(2, counting(50, 8), kLimited);
  plan({.waiting = {1, 2}});
  append(1, 7);
  add(3, counting(90, 8));
  const StepPlan step = plan({.running = {1, 2}, .waiting = {3}});
  EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(2));
  EXPECT_THAT(seqs(step.outcome.admitted), ElementsAre(3));
}

TEST_F(BlockManagerStateTest, WhereThePoolIsFullADomainIsStillAdmittedToWhatItIsSureOf) {
  limits_[kSure.value].min = 4;
  make_pool(12);
  add(1, counting(10, 16), kSure);
  plan({.waiting = {1}});
  plan({.ended = {1}});  // its four blocks are idle
  add(2, counting(50, 24));
  plan({.waiting = {2}});
  add(3, counting(90, 12));         // does not fit: two are free
  add(4, counting(10, 16), kSure);  // finds its blocks
  const StepPlan step = plan({.running = {2}, .waiting = {3, 4}});
  EXPECT_THAT(seqs(step.outcome.admitted), ElementsAre(4));
  EXPECT_EQ(step.outcome.admitted.at(0).cached_tokens, 12u);
}

TEST_F(BlockManagerStateTest, WhatADomainIsSureOfIsNotPreemptedForOthers) {
  limits_[kSure.value].min = 4;
  make_pool(8);
  add(1, counting(10, 16));
  add(2, counting(50, 16), kSure);
  plan({.waiting = {1, 2}});
  append(1, 7);
  const StepPlan step = plan({.running = {1, 2}});
  EXPECT_THAT(seqs(step.outcome.preempted), ElementsAre(1)) << "though 2 came last";
}

TEST_F(BlockManagerStateTest, ARequestThatItsDomainCanNeverHoldIsRejected) {
  limits_[kLimited.value].max = 3;
  limits_[kSure.value].min = 4;
  make_pool(10);
  add(1, counting(10, 13), kLimited);
  add(2, counting(50, 25));
  add(3, counting(90, 24));
  const StepPlan step = plan({.waiting = {1, 2, 3}});
  EXPECT_THAT(seqs(step.outcome.admitted), ElementsAre(3));
  ASSERT_EQ(step.outcome.rejected.size(), 2u);
  EXPECT_EQ(step.outcome.rejected[0].error.code, Errc::never_fits);
  EXPECT_THAT(step.outcome.rejected[0].error.text,
              HasSubstr("13 tokens, its domain's part of the pool holds 12"));
  EXPECT_THAT(step.outcome.rejected[1].error.text,
              HasSubstr("25 tokens, its domain's part of the pool holds 24"));
}

}  // namespace
}  // namespace kvhive::testing
