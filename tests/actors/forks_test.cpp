// Requests that go on from an ended one's tokens: they copy the block that it has filled in part.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/block_manager/block_manager_state.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/fsck.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kSize = 4;  // tokens per block

std::vector<TokenId> joined(std::vector<TokenId> tokens, std::initializer_list<TokenId> more) {
  tokens.insert(tokens.end(), more);
  return tokens;
}

class Forks : public ::testing::Test {
 protected:
  /// At most one in 32 blocks is kept.
  void make_pool(std::uint32_t blocks = 64, const CacheGroups& groups = {}) {
    PoolGeometry geometry = small_geometry(blocks + 1, 0, kSize);
    geometry.models[0].groups = groups;
    geometry.limits = limits_;
    memory_.emplace(private_pool(geometry));
    for (const std::uint32_t slot : {0u, 1u}) occupy(*memory_, ProcessSlot{slot}, slot + 1);
    pool_.emplace(*memory_, ProcessSlot{0});
    config_.clock = [this] { return now_; };
    manager_.emplace(*pool_, config_);
  }
  void SetUp() override { make_pool(); }

  NewSequence sequence(std::uint64_t seq, std::vector<TokenId> tokens, bool will_be_forked) {
    NewSequence added{SeqId{seq}, std::move(tokens), {}};
    added.prompt_tokens = static_cast<std::uint32_t>(added.tokens.size());
    added.will_be_forked = will_be_forked;
    return added;
  }

  /// A step that may admit these. The test ends what it admits.
  StepPlan admit(std::vector<NewSequence> added, std::vector<std::uint64_t> running = {}) {
    StepRequest request;
    request.token_budget = 1000;
    for (const std::uint64_t seq : running) request.running.push_back(SeqId{seq});
    request.victims.assign(request.running.rbegin(), request.running.rend());
    for (const NewSequence& one : added) request.waiting.push_back(one.seq);
    request.added = std::move(added);
    request.ended = std::exchange(ended_, {});
    StepPlan plan = manager_->plan(request);
    manager_->finish_step();
    return plan;
  }
  void end(std::uint64_t seq) { ended_.push_back(SeqId{seq}); }

  /// Computes it, and ends it with the next step. Its last block.
  BlockId parent(std::uint64_t seq, const std::vector<TokenId>& tokens,
                 bool will_be_forked = true) {
    const StepPlan plan = admit({sequence(seq, tokens, will_be_forked)});
    end(seq);
    return plan.work.at(0).blocks.back();
  }
  /// How many tokens a sequence finds, which ends at once.
  std::uint32_t found(const NewSequence& one) {
    const StepPlan plan = admit({one});
    end(one.seq.value);
    return plan.outcome.admitted.at(0).cached_tokens;
  }

  void listen_to_others() {
    config_.others_lack = [this] { return others_lack_; };
    config_.tell_lack = [this](const Lack& lack) { told_lack_ = lack; };
  }
  std::size_t held() const {
    return pool_->capacity(Tier::device) - pool_->available(Tier::device);
  }

  void TearDown() override {
    admit({});
    now_ += Tails::kLife;
    admit({});
    EXPECT_FALSE(manager_->keeps_tails());
    EXPECT_EQ(held(), 0u);
    EXPECT_THAT(fsck(*memory_).violations, IsEmpty());
  }

  Lack others_lack_, told_lack_;
  BlockManagerConfig config_;
  std::array<BlockLimits, kLimitedDomains> limits_{};
  std::uint64_t now_ = 1;
  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_;
  std::optional<BlockManagerState> manager_;

 private:
  std::vector<SeqId> ended_;
};

TEST_F(Forks, GoOnWithinTheirParentsLastBlock) {
  const auto prompt = counting(0, 6);
  const BlockId last = parent(1, prompt);
  const StepPlan plan =
      admit({sequence(2, joined(prompt, {77}), false), sequence(3, joined(prompt, {78}), false)});
  ASSERT_THAT(plan.work, SizeIs(2));
  ASSERT_THAT(plan.copies, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.outcome.admitted[i].cached_tokens, 6u);
    EXPECT_EQ(plan.work[i].start, 6u);
    EXPECT_THAT(plan.work[i].tokens, SizeIs(1));
    EXPECT_EQ(plan.copies[i].source, last.value);
    EXPECT_EQ(plan.copies[i].destination, plan.work[i].blocks.back().value);
  }
  EXPECT_NE(plan.copies[0].destination, plan.copies[1].destination);
  EXPECT_EQ(plan.work[0].blocks[0], plan.work[1].blocks[0]);
  EXPECT_EQ(pool_->counters()["forked_tokens"], 4u);
  end(2);
  end(3);
}

TEST_F(Forks, NothingIsKeptOfARequestThatDoesNotSayThatItWillBeForked) {
  parent(1, counting(0, 6), false);
  admit({});
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(found(sequence(2, joined(counting(0, 6), {77}), false)), 4u);
}

/// The child's tokens part from its parent's within the block; or before it; or it has no more.
TEST_F(Forks, FindAsManyTokensAsTheyHaveInCommon) {
  parent(1, counting(0, 7));
  EXPECT_EQ(found(sequence(2, joined(counting(0, 5), {77, 78}), false)), 5u);
  EXPECT_EQ(found(sequence(3, joined(counting(0, 4), {77, 78}), false)), 4u);
  EXPECT_EQ(found(sequence(4, counting(0, 6), false)), 5u) << "the last one is computed";
  EXPECT_EQ(found(sequence(5, joined(counting(0, 3), {77, 78, 79}), false)), 0u);
  EXPECT_EQ(found(sequence(6, joined(counting(0, 7), {77, 78, 79}), false)), 7u);
}

TEST_F(Forks, OfAPromptWithinTheFirstBlock) {
  parent(1, counting(0, 3));
  EXPECT_EQ(found(sequence(2, joined(counting(0, 3), {77}), false)), 3u);
}

/// Of equal tokens, others' are not found: each has a past of its own.
TEST_F(Forks, HaveTheirParentsPast) {
  for (const std::size_t length : {2u, 6u}) {
    const auto prompt = counting(TokenId(length * 100), length);
    parent(1, prompt);
    NewSequence salted = sequence(2, joined(prompt, {77}), false);
    salted.salt = ExtraKey{1, 2};
    EXPECT_EQ(found(salted), 0u);
    NewSequence elsewhere = sequence(3, joined(prompt, {77}), false);
    elsewhere.domain = DomainId{1};
    EXPECT_EQ(found(elsewhere), 0u);
    NewSequence scored = sequence(4, joined(prompt, {77}), false);
    scored.reads_cache = false;
    EXPECT_EQ(found(scored), 0u);
    std::vector<TokenId> other = joined(prompt, {77});
    other[0] = 5555;
    EXPECT_EQ(found(sequence(5, other, false)), 0u);
    EXPECT_EQ(found(sequence(6, joined(prompt, {77}), false)), length);
    reset_cache(*memory_);
    EXPECT_EQ(found(sequence(7, joined(prompt, {78}), false)), 0u);
  }
}

TEST_F(Forks, AreAwaitedForAMoment) {
  parent(1, counting(0, 6));
  admit({});
  EXPECT_EQ(held(), 1u);
  now_ += Tails::kLife - 1;
  admit({});
  EXPECT_EQ(held(), 1u);
  EXPECT_TRUE(manager_->keeps_tails());
  ++now_;
  admit({});
  EXPECT_EQ(held(), 0u);
  EXPECT_FALSE(manager_->keeps_tails());
  EXPECT_EQ(found(sequence(2, joined(counting(0, 6), {77}), false)), 4u);
}

TEST_F(Forks, OfManyParentsTheOldestAreForgotten) {
  for (std::uint64_t seq : {1, 2, 3}) parent(seq, counting(TokenId(100 * seq), 6));
  admit({});
  EXPECT_EQ(held(), 2u) << "of 64 blocks";
  EXPECT_EQ(found(sequence(11, joined(counting(100, 6), {77}), false)), 4u);
  EXPECT_EQ(found(sequence(12, joined(counting(200, 6), {77}), false)), 6u);
  EXPECT_EQ(found(sequence(13, joined(counting(300, 6), {77}), false)), 6u);
}

TEST_F(Forks, OfADomainWithManyParentsDoNotPushOutThoseOfOthers) {
  make_pool(96);
  parent(1, counting(100, 6));
  for (std::uint64_t seq : {2, 3, 4, 5}) {
    NewSequence of_other = sequence(seq, counting(TokenId(100 * seq), 6), true);
    of_other.domain = DomainId{2};
    admit({of_other});
    end(seq);
  }
  admit({});
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(found(sequence(11, joined(counting(100, 6), {77}), false)), 6u);
}

/// Another engine cannot ask for what is kept here.
TEST_F(Forks, AreNotAwaitedWhileAnotherEngineLacksBlocks) {
  listen_to_others();
  make_pool();
  parent(1, counting(0, 6));
  admit({});
  EXPECT_EQ(held(), 1u);
  others_lack_.of_all = true;
  admit({});
  EXPECT_EQ(held(), 0u);
  parent(2, counting(1000, 6));
  admit({});
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(told_lack_, Lack{});
  // This one lacks them.
  BlockPool peer(*memory_, ProcessSlot{1});
  const auto taken = peer.allocate(Tier::device, 60).value();
  admit({sequence(3, counting(2000, 3 * kSize), false)});
  admit({sequence(4, counting(3000, 3 * kSize), false)}, {3});
  EXPECT_TRUE(told_lack_.of_all);
  peer.release(taken);
  end(3);
  end(4);
  admit({});
  EXPECT_EQ(told_lack_, Lack{});
}

/// Its maximum counts what all engines keep for it.
TEST_F(Forks, OfADomainAtItsMaximumElsewhereAreGivenUpAndThoseOfOthersAreNot) {
  limits_[2] = {0, 4};
  listen_to_others();
  make_pool();
  const auto keeps_one_of_each = [&](std::uint64_t first) {
    for (const std::uint64_t seq : {first, first + 1}) {
      NewSequence one = sequence(seq, counting(TokenId(100 * seq), 6), true);
      one.domain = DomainId{static_cast<std::uint16_t>(1 + seq - first)};
      admit({one});
      end(seq);
    }
    admit({});
    return held();
  };
  EXPECT_EQ(keeps_one_of_each(1), 2u);
  others_lack_.add(pool_->lanes().of(DomainId{2}));
  admit({});
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(keeps_one_of_each(3), 2u) << "none of the second domain's is kept now";

  // This engine tells the same: the domain has four blocks, and another engine holds them.
  others_lack_ = {};
  BlockPool peer(*memory_, ProcessSlot{1});
  const auto taken = peer.allocate(Tier::device, 4, DomainId{2}).value();
  NewSequence waits = sequence(10, counting(5000, 6), false);
  waits.domain = DomainId{2};
  admit({sequence(9, counting(4000, 6), false)});
  EXPECT_THAT(admit({waits}, {9}).outcome.admitted, IsEmpty());
  EXPECT_TRUE(told_lack_.has(pool_->lanes().of(DomainId{2})));
  EXPECT_FALSE(told_lack_.of_all);
  peer.release(taken);
  end(9);
  end(10);
  admit({});
  EXPECT_EQ(told_lack_, Lack{});
}

/// To give them up would make no room for anybody else.
TEST_F(Forks, OfADomainThatHasNoMoreThanItsMinimumStayWhileAnotherLacksBlocks) {
  limits_[2] = {8, 0};
  listen_to_others();
  make_pool();
  NewSequence sure = sequence(1, counting(0, 6), true);
  sure.domain = DomainId{2};
  admit({sure});
  end(1);
  others_lack_.of_all = true;
  admit({});
  EXPECT_EQ(held(), 1u);
}

TEST_F(Forks, TakeNoRoomFromWhatWaits) {
  parent(1, counting(0, 6));
  admit({sequence(2, counting(1000, 200), false)});
  EXPECT_EQ(held(), 51u);
  EXPECT_THAT(admit({sequence(3, counting(2000, 13 * kSize), false)}, {2}).outcome.admitted,
              SizeIs(1));
  EXPECT_EQ(held(), 64u);
  end(2);
  end(3);
}

TEST_F(Forks, TakeNoRoomFromWhatRuns) {
  parent(1, counting(0, 6));
  admit({});
  StepRequest request;
  request.token_budget = 1000;
  request.added = {sequence(2, counting(1000, 63 * kSize), false)};
  request.waiting = {SeqId{2}};
  manager_->plan(request);
  EXPECT_EQ(held(), 64u);
  manager_->finish_step(
      {.step = 0, .outcome = {}, .sampled = {{SeqId{2}, {7, 0, {}}}}, .times = {}});
  const StepPlan plan = admit({}, {2});
  EXPECT_THAT(plan.outcome.preempted, IsEmpty());
  EXPECT_THAT(plan.work, SizeIs(1));
  EXPECT_FALSE(manager_->keeps_tails());
  end(2);
}

/// Another engine has nearly all blocks.
TEST_F(Forks, StayWhereTheyAreTooFewToHelp) {
  parent(1, counting(0, 6));
  BlockPool peer(*memory_, ProcessSlot{1});
  const auto taken = peer.allocate(Tier::device, 55).value();
  EXPECT_THAT(admit({sequence(2, counting(1000, 15 * kSize), false)}).outcome.admitted, IsEmpty());
  EXPECT_TRUE(manager_->keeps_tails());
  peer.release(taken);
  end(2);
}

TEST_F(Forks, OfOthersAreLeftByADomainAtItsMaximum) {
  const DomainId limited{2};
  limits_[limited.value].max = 3;
  make_pool();
  parent(1, counting(0, 6));
  NewSequence of_limited = sequence(2, counting(1000, 3 * kSize), true);
  of_limited.domain = limited;
  NewSequence behind = sequence(3, counting(2000, 2), false);
  behind.domain = limited;
  admit({of_limited});
  EXPECT_EQ(held(), 4u);
  EXPECT_THAT(admit({behind}, {2}).outcome.admitted, IsEmpty());
  EXPECT_TRUE(manager_->keeps_tails());
  end(2);
  end(3);
  // Its own make room for it.
  NewSequence short_one = sequence(4, counting(3000, 2), true);
  short_one.domain = limited;
  admit({short_one});
  end(4);
  NewSequence all = sequence(5, counting(4000, 3 * kSize), false);
  all.domain = limited;
  EXPECT_THAT(admit({all}).outcome.admitted, SizeIs(1));
  EXPECT_EQ(held(), 4u) << "with the other domain's tail";
  end(5);
}

TEST_F(Forks, TakeNoRoomFromWhatAsks) {
  parent(1, counting(0, 6));
  admit({});
  const auto asks = [&](std::size_t blocks) {
    const Question question{SeqId{9}, counting(1000, blocks * kSize)};
    return *manager_->answer({{question}, 1}).given.at(0).room;
  };
  EXPECT_EQ(asks(64).status, AllocStatus::ok);
  EXPECT_EQ(asks(64).available_blocks, 64u);
  EXPECT_TRUE(manager_->keeps_tails());
}

/// For each block that it holds less, one more of its cached blocks is protected.
TEST_F(Forks, OfADomainWithAMinimumMakeNoRoomForOthers) {
  const DomainId guarded{2};
  limits_[guarded.value].min = 20;
  make_pool();
  NewSequence of_guarded = sequence(1, counting(0, 30 * kSize + 2), true);
  of_guarded.domain = guarded;
  admit({of_guarded});
  end(1);
  admit({sequence(2, counting(1000, 10 * kSize), false)});
  ASSERT_TRUE(manager_->keeps_tails());
  const auto asks = [&](std::size_t blocks) {
    const Question question{SeqId{9}, counting(2000, blocks * kSize)};
    return *manager_->answer({{question}, 1}).given.at(0).room;
  };
  EXPECT_EQ(asks(34).status, AllocStatus::ok);
  EXPECT_EQ(asks(35).status, AllocStatus::later);
  EXPECT_EQ(asks(35).available_blocks, 34u);
  EXPECT_THAT(admit({sequence(3, counting(2000, 35 * kSize), false)}, {2}).outcome.admitted,
              IsEmpty());
  EXPECT_TRUE(manager_->keeps_tails());
  end(2);
  end(3);
}

/// The step ahead has filled the block with a token that nobody wants.
TEST_F(Forks, OfAParentThatEndedWhileAStepAheadComputedOnArePossible) {
  config_.async_scheduling = true;
  make_pool();
  StepRequest request;
  request.step = 1;
  request.token_budget = 1000;
  request.added = {sequence(1, counting(0, 3), true)};
  request.waiting = {SeqId{1}};
  manager_->plan(request);
  ASSERT_TRUE(manager_->plan_ahead().has_value());
  manager_->finish_step(
      {.step = 1, .outcome = {}, .sampled = {{SeqId{1}, {7, 0, {}}}}, .times = {}});
  StepRequest next;
  next.step = 2;
  next.token_budget = 1000;
  next.ended = {SeqId{1}};
  manager_->join(next);
  manager_->finish_step();
  EXPECT_EQ(found(sequence(2, joined(counting(0, 3), {7, 8}), false)), 3u);
}

class ForksOfGroups : public Forks, public ::testing::WithParamInterface<CacheGroups> {
 protected:
  void SetUp() override { make_pool(200, GetParam()); }
};

/// At every length: where a window ends within the tail, and where it does not.
TEST_P(ForksOfGroups, CopyABlockOfEach) {
  const std::size_t groups = GetParam().count;
  std::uint64_t seq = 0;
  for (std::size_t length = 1; length <= 24; ++length) {
    SCOPED_TRACE(length);
    const auto prompt = counting(TokenId(100 * length), length);
    parent(++seq, prompt);
    const StepPlan plan = admit({sequence(++seq, joined(prompt, {77}), false)});
    end(seq);
    EXPECT_EQ(plan.work.at(0).start, length);
    EXPECT_EQ(plan.copies.size(), length % kSize != 0 ? groups : 0);
    const std::size_t blocks = plan.work[0].blocks.size() / groups;
    for (std::size_t g = 0; g < plan.copies.size(); ++g)
      EXPECT_EQ(plan.copies[g].destination, plan.work[0].blocks[(g + 1) * blocks - 1].value);
    now_ += Tails::kLife;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForksOfGroups,
                         ::testing::Values(groups_of({kFull}), groups_of({window(6)}),
                                           groups_of({kFull, window(7)}),
                                           groups_of({window(5), kFull, window(12)}),
                                           groups_of({kFull, chunks(8)})));

}  // namespace
}  // namespace kvhive::testing
