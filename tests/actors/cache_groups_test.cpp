// The block manager over pools with several cache groups, and with windows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "actors/block_manager/block_manager_state.hpp"
#include "actors/swapper_state.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/miss_report.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kSize = 4;  // tokens per block

class CacheGroupsTest : public ::testing::Test {
 protected:
  void make_pool(std::initializer_list<CacheGroup> groups, std::uint32_t device_blocks,
                 std::uint32_t host_blocks = 0) {
    PoolGeometry geometry = small_geometry(device_blocks + 1, host_blocks, kSize);
    geometry.models[0].groups = groups_of(groups);
    memory_.emplace(private_pool(geometry));
    for (const std::uint32_t slot : {0u, 1u}) occupy(*memory_, ProcessSlot{slot}, slot + 1);
    pool_.emplace(*memory_, ProcessSlot{0});
    peer_.emplace(*memory_, ProcessSlot{1});
    manager_.emplace(*pool_, config_);
    peers_manager_.emplace(*peer_, config_);
  }

  struct Step {
    std::vector<std::uint64_t> running{}, waiting{}, ended{};
    std::uint32_t budget = 1000;
  };
  static std::vector<SeqId> ids(const std::vector<std::uint64_t>& numbers) {
    std::vector<SeqId> ids;
    for (const std::uint64_t number : numbers) ids.push_back(SeqId{number});
    return ids;
  }
  void add(std::uint64_t seq, std::vector<TokenId> tokens) {
    const auto prompt = static_cast<std::uint32_t>(tokens.size());
    request_.added.push_back({SeqId{seq}, std::move(tokens), {}, 0, {}});
    request_.added.back().prompt_tokens = prompt;
  }
  void append(std::uint64_t seq, TokenId token) {
    done_.sampled.push_back({SeqId{seq}, {token, 0, {}}});
  }
  StepPlan plan(const Step& step) { return plan(*manager_, step); }
  StepPlan plan(BlockManagerState& manager, const Step& step) {
    manager.finish_step(std::exchange(done_, {}));
    StepRequest request = std::move(request_);
    request_ = {};
    request.token_budget = step.budget;
    request.running = ids(step.running);
    request.waiting = ids(step.waiting);
    request.ended = ids(step.ended);
    request.victims.assign(request.running.rbegin(), request.running.rend());
    StepPlan made = manager.plan(request);
    EXPECT_TRUE(SwapperState(*memory_).move(made).has_value());
    return made;
  }
  /// Computes a sequence as a whole and ends it: its blocks are idle then.
  void compute_and_end(const std::vector<TokenId>& tokens) {
    add(1000, tokens);
    EXPECT_THAT(plan({.waiting = {1000}}).outcome.admitted, SizeIs(1));
    plan({.ended = {1000}});
  }
  /// How many tokens of a new sequence another engine finds.
  std::uint32_t found(const std::vector<TokenId>& tokens) {
    add(2000, tokens);
    const StepPlan made = plan(*peers_manager_, {.waiting = {2000}, .budget = 1});
    const std::uint32_t cached =
        made.outcome.admitted.empty() ? ~0u : made.outcome.admitted[0].cached_tokens;
    plan(*peers_manager_, {.ended = {2000}});
    return cached;
  }

  std::vector<BlockId> table_of(const ScheduledSequence& work, std::size_t group) const {
    const std::size_t blocks = work.blocks.size() / memory_->geometry().models[0].groups.count;
    const auto first = work.blocks.begin() + std::ptrdiff_t(group * blocks);
    return {first, first + std::ptrdiff_t(blocks)};
  }
  static std::size_t nulls(const std::vector<BlockId>& table) {
    return std::size_t(std::ranges::count(table, kNullBlock));
  }
  /// The idle block with this place in its sequence, in a group.
  BlockId idle_block(std::uint8_t group, std::uint32_t depth) const {
    for (std::uint32_t b = 1; b < memory_->geometry().device_blocks; ++b) {
      const BlockView view = memory_->block(BlockId{b});
      if (view.word().is_idle() && view.group().value == group && view.depth() == depth)
        return BlockId{b};
    }
    return kNullBlock;
  }
  /// As if the block had been taken for other content.
  void evict(std::uint8_t group, std::uint32_t depth) {
    const BlockId block = idle_block(group, depth);
    ASSERT_NE(block, kNullBlock);
    const BlockView view = memory_->block(block);
    ASSERT_TRUE(view.retire(view.word()));
    ++retired_;
  }
  std::size_t held() const {
    return pool_->capacity(Tier::device) - pool_->available(Tier::device) - retired_;
  }

  void TearDown() override {
    if (retired_ != 0 || !memory_) return;
    EXPECT_THAT(fsck(*memory_).violations, IsEmpty());
  }

  BlockManagerConfig config_{.max_num_batched_tokens = 8};
  std::optional<PoolMemory> memory_;
  std::optional<BlockPool> pool_, peer_;
  std::optional<BlockManagerState> manager_, peers_manager_;
  StepRequest request_;
  StepDone done_;  ///< of the step before
  std::size_t retired_ = 0;
};

// -- windows --------------------------------------------------------------------------------------

TEST_F(CacheGroupsTest, BlocksThatLeaveTheWindowAreReleasedAndCanBeFound) {
  make_pool({window(6)}, 20);
  add(1, counting(0, 16));
  plan({.waiting = {1}, .budget = 8});
  StepPlan second = plan({.running = {1}, .budget = 8});
  // Token 8 reads from token 3 on: block 0 is still read.
  EXPECT_EQ(nulls(table_of(second.work[0], 0)), 0u);
  append(1, 7);
  const StepPlan third = plan({.running = {1}});
  // Token 16 reads from token 11 on: blocks 0 and 1 are not read any more.
  const auto table = table_of(third.work[0], 0);
  ASSERT_THAT(table, SizeIs(5));
  EXPECT_EQ(nulls(table), 2u);
  EXPECT_EQ(table[0], kNullBlock);
  EXPECT_EQ(table[1], kNullBlock);
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(found(counting(0, 9)), 8u) << "another sequence finds the blocks that have gone";
  plan({.ended = {1}});
}

TEST_F(CacheGroupsTest, ASequenceOf100000TokensHoldsAWindowAndAStep) {
  make_pool({window(64)}, 60);
  constexpr std::size_t kTokens = 100'000;
  add(1, counting(0, kTokens));
  std::size_t most = 0;
  StepPlan made = plan({.waiting = {1}, .budget = 8});
  ASSERT_THAT(made.outcome.admitted, SizeIs(1)) << "it is admitted though it has 25,000 blocks";
  for (std::size_t computed = 8; computed < kTokens; computed += 8) {
    made = plan({.running = {1}, .budget = 8});
    ASSERT_THAT(made.work, SizeIs(1));
    most = std::max(most, held());
  }
  const std::size_t bound = window(64).most_blocks(kTokens, 8, kSize);
  EXPECT_LE(most, bound);
  EXPECT_EQ(bound, 19u);
  std::printf(
      "100000 tokens in a window of 64, 8 a step: %zu blocks of 4 held at most, bound %zu\n", most,
      bound);
  plan({.ended = {1}});
}

TEST_F(CacheGroupsTest, AHitTakesTheWindowOnlyAndTheRestStaysIdle) {
  make_pool({window(6)}, 20);
  compute_and_end(counting(0, 32));
  add(1, counting(0, 33));
  const StepPlan made = plan({.waiting = {1}});
  ASSERT_THAT(made.outcome.admitted, SizeIs(1));
  EXPECT_EQ(made.outcome.admitted[0].cached_tokens, 32u);
  const auto table = table_of(made.work[0], 0);
  EXPECT_EQ(nulls(table), 6u);  // token 32 reads from token 27 on
  EXPECT_EQ(held(), 3u);
  plan({.ended = {1}});
}

/// A match from block to block would end at the gap.
TEST_F(CacheGroupsTest, AWindowIsFoundBehindAGap) {
  make_pool({window(6)}, 20);
  compute_and_end(counting(0, 32));
  evict(0, 2);
  EXPECT_EQ(found(counting(0, 33)), 32u);
  EXPECT_EQ(found(counting(0, 13)), 8u) << "where the gap is in the window, what is before it";
}

// -- vLLM: test_hybrid_local_kv_retention..., test_pure_swa_retention..., and those of a shared
// prefix -----------------------------------------------------------------------------------------

TEST_F(CacheGroupsTest, TheLatestOnlyIsFoundWhereThePromptEndedAndNowhereElse) {
  config_.retention = {0};
  make_pool({kFull, window(6)}, 60);
  compute_and_end(counting(0, 35));
  EXPECT_EQ(found(counting(0, 35)), 32u);
  EXPECT_EQ(found(counting(0, 21)), 0u);
  EXPECT_EQ(found(counting(0, 60)), 32u) << "a longer prompt goes on from there";
}

TEST_F(CacheGroupsTest, AWindowAloneIsKeptAtThePromptsEndOnly) {
  config_.retention = {0};
  make_pool({window(6)}, 60);
  compute_and_end(counting(0, 35));
  EXPECT_EQ(found(counting(0, 35)), 32u);
  EXPECT_EQ(found(counting(0, 21)), 0u);
}

TEST_F(CacheGroupsTest, AtAnIntervalWindowsAreFoundBeforeItsMultiplesToo) {
  config_.retention = {16};
  make_pool({kFull, window(6)}, 60);
  compute_and_end(counting(0, 60));
  EXPECT_EQ(found(counting(0, 50)), 48u);
  EXPECT_EQ(found(counting(0, 47)), 32u);
  EXPECT_EQ(found(counting(0, 60)), 56u) << "and at the prompt's end";
}

/// What a system prompt needs: full attention has it, the window only where the first prompt ended.
TEST_F(CacheGroupsTest, ABeginningInCommonIsKeptFromTheSecondTimeOn) {
  config_.retention = {0};
  make_pool({kFull, window(6)}, 100);
  const auto prompt = [](TokenId rest) {
    std::vector<TokenId> tokens = counting(0, 20);
    const auto own = counting(rest, 14);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  };
  compute_and_end(prompt(100));
  EXPECT_EQ(found(prompt(200)), 0u);
  compute_and_end(prompt(200));
  EXPECT_EQ(found(prompt(300)), 20u);
}

TEST_F(CacheGroupsTest, WhatAnAnswerAddsIsNotKeptOfAWindow) {
  config_.retention = {0};
  make_pool({kFull, window(6)}, 60);
  add(1, counting(0, 17));
  plan({.waiting = {1}});
  for (TokenId token = 17; token < 30; ++token) {
    append(1, token);
    plan({.running = {1}});
  }
  plan({.ended = {1}});
  EXPECT_EQ(found(counting(0, 30)), 16u);
}

/// Full blocks that nobody will look for go first: those that are kept stay longer.
TEST_F(CacheGroupsTest, BlocksThatAreNotKeptAreFreeAtOnce) {
  for (const auto& [interval, blocks] :
       {std::pair{std::optional<std::uint32_t>(), 16u}, {std::optional<std::uint32_t>(0), 10u}}) {
    config_.retention.interval = interval;
    make_pool({kFull, window(6)}, 60);
    compute_and_end(counting(0, 33));
    std::size_t idle = 0;
    for (std::uint32_t b = 1; b < memory_->geometry().device_blocks; ++b)
      idle += memory_->block(BlockId{b}).word().is_idle();
    EXPECT_EQ(idle, blocks);
  }
}

/// The window's tokens are equal, those before it are not: no hit.
TEST_F(CacheGroupsTest, AWindowAfterOtherTokensIsNotFound) {
  make_pool({window(6)}, 40);
  auto tokens = counting(0, 32);
  compute_and_end(tokens);
  tokens[1] = 999;
  tokens.push_back(5);
  EXPECT_EQ(found(tokens), 0u);
}

TEST_F(CacheGroupsTest, ChunksAreReleasedWhenTheNextOneBegins) {
  make_pool({chunks(8), kFull}, 40);
  add(1, counting(0, 20));
  plan({.waiting = {1}, .budget = 8});
  StepPlan made = plan({.running = {1}, .budget = 8});
  EXPECT_EQ(nulls(table_of(made.work[0], 0)), 2u);
  EXPECT_EQ(nulls(table_of(made.work[0], 1)), 0u);
  made = plan({.running = {1}, .budget = 8});
  EXPECT_EQ(nulls(table_of(made.work[0], 0)), 4u);
  plan({.ended = {1}});
  EXPECT_EQ(found(counting(0, 20)), 16u);
}

// -- hybrid models: vLLM's test_prefill_hybrid_model
// ------------------------------------------------

class HybridModel : public CacheGroupsTest {
 protected:
  void SetUp() override {
    make_pool({kFull, window(2 * kSize), window(2 * kSize)}, 60);
    compute_and_end(prompt_);
  }
  const std::vector<TokenId> prompt_ = counting(0, 3 * kSize + 2);
};

TEST_F(HybridModel, AllGroupsAreHit) { EXPECT_EQ(found(prompt_), 3 * kSize); }

TEST_F(HybridModel, BlocksOutsideTheWindowsAreNotNeeded) {
  evict(1, 0);
  evict(2, 0);
  EXPECT_EQ(found(prompt_), 3 * kSize);
}

TEST_F(HybridModel, WithoutTheFirstBlockOfFullAttentionNothingIs) {
  evict(0, 0);
  EXPECT_EQ(found(prompt_), 0u);
}

TEST_F(HybridModel, TheLastBlockOfAnyGroupShortensTheHit) {
  evict(1, 2);
  EXPECT_EQ(found(prompt_), 2 * kSize);
}

TEST_F(HybridModel, DifferentPartsOfFullAttentionAndWindowsAreAMiss) {
  evict(0, 2);
  evict(1, 0);
  evict(2, 0);
  EXPECT_EQ(found(prompt_), 0u);
}

TEST_F(HybridModel, WhyNamesTheGroupThatLacksABlock) {
  evict(2, 2);
  const MissReport report = explain_miss(*memory_, {}, prompt_);
  EXPECT_EQ(report.computed_from, 2u);
  ASSERT_TRUE(report.decisive.has_value());
  EXPECT_EQ(report.blocks[*report.decisive].group, GroupId{2});
  EXPECT_EQ(report.blocks[*report.decisive].index, 2u);
  EXPECT_THAT(report.blocks, SizeIs(9));
  EXPECT_EQ(report.on_device, 6u);
}

TEST_F(HybridModel, WhatIsFoundAndNotNeededKeepsItsPlace) {
  const auto before = pool_->free_queue(Tier::device);
  EXPECT_EQ(found(counting(500, 9)), 0u);
  evict(1, 2);  // the full group's third block is found, and given back
  auto without = pool_->free_queue(Tier::device);
  add(1, prompt_);
  const StepPlan made = plan({.waiting = {1}, .budget = 1});
  ASSERT_EQ(made.outcome.admitted[0].cached_tokens, 2 * kSize);
  const BlockId third = idle_block(0, 2);
  EXPECT_NE(third, kNullBlock) << "it is not held";
  EXPECT_LT(std::ranges::find(without, third) - without.begin(), std::ptrdiff_t(without.size()));
  plan({.ended = {1}});
}

// -- admission ------------------------------------------------------------------------------------

/// vLLM: test_can_fit_full_sequence_swa_cap_admits_long_prompt.
TEST_F(CacheGroupsTest, CanFitFullSequenceSwaCapAdmitsLongPrompt) {
  make_pool({window(8)}, 6);
  add(1, counting(0, 200));
  EXPECT_THAT(plan({.waiting = {1}, .budget = 8}).outcome.admitted, SizeIs(1));
  plan({.ended = {1}});
}

/// vLLM: test_can_fit_full_sequence_full_attention_still_gates_oversized.
TEST_F(CacheGroupsTest, CanFitFullSequenceFullAttentionStillGatesOversized) {
  make_pool({kFull, window(8)}, 20);
  add(1, counting(0, 200));
  const StepPlan made = plan({.waiting = {1}, .budget = 8});
  ASSERT_THAT(made.outcome.rejected, SizeIs(1));
  // 15 blocks of full attention and 5 of the window are 20.
  EXPECT_THAT(made.outcome.rejected[0].error.text, HasSubstr("holds 60"));
  plan({.ended = {1}});
}

// -- the host tier --------------------------------------------------------------------------------

TEST_F(CacheGroupsTest, ASwappedSequenceTakesItsWindowsAlongAndComesBack) {
  config_.preemption = PreemptionMode::swap;
  make_pool({kFull, window(6)}, 16, 16);
  add(1, counting(0, 22));
  plan({.waiting = {1}, .budget = 8});
  plan({.running = {1}, .budget = 8});
  plan({.running = {1}, .budget = 8});
  // Holds 6 blocks of full attention and 4 of the window; another process takes the others.
  const auto last = peer_->allocate(Tier::device, 6).value();
  StepPlan out;
  for (TokenId next = 100; out.outcome.preempted.empty(); ++next) {
    append(1, next);
    out = plan({.running = {1}});
  }
  // 28 tokens: 7 blocks of full attention, and those of the window from token 23 on.
  EXPECT_THAT(out.swap_out, SizeIs(7 + 2)) << "what has left the window stays behind";
  peer_->release(last);
  plan({});
  peer_->release(peer_->allocate(Tier::device, 16).value());  // evicts what the device still has
  const StepPlan in = plan({.waiting = {1}});
  ASSERT_THAT(in.outcome.admitted, SizeIs(1));
  EXPECT_EQ(in.outcome.admitted[0].cached_tokens, 28u);
  EXPECT_THAT(in.swap_in, SizeIs(7 + 2));
  EXPECT_EQ(nulls(table_of(in.work[0], 0)), 0u);
  EXPECT_EQ(nulls(table_of(in.work[0], 1)), 5u);
  plan({.ended = {1}});
}

TEST_F(CacheGroupsTest, DemotedBlocksOfAllGroupsAreFoundAgain) {
  make_pool({kFull, window(6)}, 16, 32);
  compute_and_end(counting(0, 24));
  compute_and_end(counting(500, 28));  // takes what the first one had
  manager_->copy_policy().set(1, 100);
  peers_manager_->copy_policy().set(1, 100);
  plan({});
  EXPECT_GE(found(counting(0, 25)), 24u);
  EXPECT_GT(peer_->counters()["promoted_blocks"].load(), 0u);
}

}  // namespace
}  // namespace kvhive::testing
