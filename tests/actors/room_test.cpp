// What the block manager answers to the question whether a prompt finds room (vLLM V0's
// can_allocate).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "actors/block_manager/block_manager_state.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/fsck.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// One engine over a pool of its own.
class Manager {
 public:
  Manager(const PoolGeometry& geometry, const BlockManagerConfig& config)
      : memory_(private_pool(geometry)), pool_(memory_, ProcessSlot{0}), state_(pool_, config) {
    occupy(memory_, ProcessSlot{0});
  }

  Answer ask(std::vector<TokenId> tokens, std::size_t running = 0, const ExtraKey& salt = {},
             bool reads_cache = true) {
    const Questions questions{{{SeqId{999}, std::move(tokens), {}, salt, reads_cache}}, running};
    Answers answers = state_.answer(questions);
    KV_CHECK(answers.given.size() == 1 && answers.given[0].seq == SeqId{999});
    return std::move(answers.given[0]);
  }
  AllocStatus status(std::vector<TokenId> tokens, std::size_t running = 0) {
    const Answer answer = ask(std::move(tokens), running);
    if (answer.room) return answer.room->status;
    EXPECT_EQ(answer.room.error().code, Errc::never_fits);
    return AllocStatus::never;
  }

  /// A step that runs all that run, and may admit a new sequence. Whether it did.
  bool step(std::optional<std::vector<TokenId>> added = {}) {
    StepRequest request;
    request.step = ++step_;
    request.token_budget = 1'000;
    for (const SeqId seq : running_) request.running.push_back(seq);
    request.victims.assign(request.running.rbegin(), request.running.rend());
    request.ended = std::exchange(ended_, {});
    if (added) {
      request.added.push_back({SeqId{++newest_}, std::move(*added), {}, 0, {}});
      request.waiting = {SeqId{newest_}};
    }
    const StepPlan plan = state_.plan(request);
    KV_CHECK(plan.outcome.preempted.empty());
    cached_ = plan.outcome.admitted.empty() ? 0 : plan.outcome.admitted[0].cached_tokens;
    if (!plan.outcome.admitted.empty()) running_.push_back(SeqId{newest_});
    if (added && plan.outcome.admitted.empty()) ended_.push_back(SeqId{newest_});
    state_.finish_step();
    return !plan.outcome.admitted.empty();
  }
  void end(std::size_t running) {
    ended_.push_back(running_.at(running));
    running_.erase(running_.begin() + std::ptrdiff_t(running));
    step();
  }
  std::size_t running() const { return running_.size(); }
  std::uint32_t cached() const { return cached_; }
  BlockPool& pool() { return pool_; }
  PoolMemory& memory() { return memory_; }

 private:
  PoolMemory memory_;
  BlockPool pool_;
  BlockManagerState state_;
  std::vector<SeqId> running_, ended_;
  std::uint64_t newest_ = 0, step_ = 0;
  std::uint32_t cached_ = 0;
};

/// V0's test_can_allocate_seq_group: 16 tokens a block, 8, 40 and 80 blocks, watermarks of 0
/// and 0.5. Beside a sequence of 1 or 4 blocks that runs, without which kvhive leaves nothing free.
TEST(Room, IsOkLaterOrNeverAsInV0ButForWhatTheWatermarkMakesImpossible) {
  constexpr std::size_t kSize = 16;
  for (const std::uint32_t blocks : {8u, 40u, 80u})
    for (const std::size_t held : {1u, 4u})
      for (const double watermark : {0.0, 0.5}) {
        Manager manager(small_geometry(blocks + 1, 0, kSize), {.watermark = watermark});
        ASSERT_TRUE(manager.step(counting(1, held * kSize)));
        const std::size_t kept = std::size_t(watermark * (blocks + 1)), free = blocks - held;
        for (std::size_t need = 1; need <= blocks + 2; ++need) {
          const AllocStatus expected = need > blocks         ? AllocStatus::never
                                       : need + kept <= free ? AllocStatus::ok
                                                             : AllocStatus::later;
          EXPECT_EQ(manager.status(counting(1'000, need * kSize), 1), expected)
              << blocks << " blocks, " << held << " held, " << need << " needed, " << watermark;
          const std::size_t partial = need * kSize - kSize + 1;  // a block of it is nearly empty
          EXPECT_EQ(manager.status(counting(1'000, partial), 1), expected) << need;
        }
      }
}

TEST(Room, WhoIsAloneLeavesNothingFree) {
  Manager manager(small_geometry(9), {.watermark = 0.5});
  EXPECT_EQ(manager.status(counting(1, 32)), AllocStatus::ok);
  EXPECT_EQ(manager.status(counting(1, 32), 1), AllocStatus::later);
  EXPECT_TRUE(manager.step(counting(1, 32)));
}

TEST(Room, NoMoreRunThanMayRun) {
  Manager manager(small_geometry(9), {.max_num_seqs = 3});
  EXPECT_EQ(manager.status(counting(1, 4), 2), AllocStatus::ok);
  EXPECT_EQ(manager.status(counting(1, 4), 3), AllocStatus::later);
}

TEST(Room, NeverSaysWhy) {
  Manager manager(small_geometry(9), {});
  const Answer answer = manager.ask(counting(1, 33));
  ASSERT_FALSE(answer.room);
  EXPECT_THAT(answer.room.error().text, HasSubstr("33 tokens, the whole pool holds 32"));
}

TEST(Room, WhatIsCachedIsNotNeeded) {
  Manager manager(small_geometry(9), {});
  ASSERT_TRUE(manager.step(counting(1, 16)));
  const RoomStatus held = *manager.ask(counting(1, 20), 1).room;
  EXPECT_EQ(held.cached_tokens, 16u);
  EXPECT_EQ(held.needed_blocks, 1u);
  EXPECT_EQ(held.available_blocks, 4u);
  manager.end(0);
  const RoomStatus idle = *manager.ask(counting(1, 20)).room;
  EXPECT_EQ(idle.cached_tokens, 16u);
  EXPECT_EQ(idle.needed_blocks, 1u);
  EXPECT_EQ(idle.available_blocks, 4u) << "what is found is not there for others";
  EXPECT_EQ(manager.ask(counting(1, 16)).room->cached_tokens, 12u) << "one token is computed";
  EXPECT_EQ(manager.ask(counting(1, 20), 0, {1, 2}).room->cached_tokens, 0u) << "under a salt";
  EXPECT_EQ(manager.ask(counting(1, 20), 0, {}, false).room->cached_tokens, 0u) << "if scored";
  reset_cache(manager.memory());
  EXPECT_EQ(manager.ask(counting(1, 20)).room->cached_tokens, 0u) << "after a reset";
}

TEST(Room, AskingChangesNothing) {
  Manager manager(small_geometry(17, 8), {});
  for (const TokenId first : {1, 100, 200}) {
    ASSERT_TRUE(manager.step(counting(first, 12)));
    manager.end(0);
  }
  const auto order = numbers(manager.pool().free_queue(Tier::device));
  const std::uint64_t queried = manager.pool().counters()["queried_blocks"];
  for (const std::size_t tokens : {5, 12, 16, 60, 80})
    for (const TokenId first : {1, 100, 150}) (void)manager.ask(counting(first, tokens));
  EXPECT_EQ(numbers(manager.pool().free_queue(Tier::device)), order);
  EXPECT_EQ(manager.pool().counters()["queried_blocks"], queried);
  EXPECT_THAT(fsck(manager.memory()).violations, IsEmpty());
}

/// In random states of pools of all kinds: OK is what the next step admits, with as many cached
/// tokens, and LATER is what it does not, unless the engine is idle and tries.
TEST(Room, IsWhatTheNextStepDoes) {
  const std::vector<CacheGroups> kinds = {groups_of({kFull}), groups_of({window(12)}),
                                          groups_of({chunks(16)}), groups_of({kFull, window(8)}),
                                          groups_of({kFull, window(8), window(20)})};
  std::size_t ok = 0, later = 0, cached = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    PoolGeometry geometry = small_geometry(25 + random() % 20);
    geometry.models[0].groups = kinds[seed % kinds.size()];
    Manager manager(geometry, {.watermark = random() % 2 != 0 ? 0.1 : 0.0,
                               .max_num_seqs = 4,
                               .max_num_batched_tokens = 1'000});
    for (int round = 0; round < 100; ++round) {
      const auto first = static_cast<TokenId>(1 + random() % 3 * 1'000);
      const std::vector<TokenId> prompt = counting(first, 1 + random() % 60);
      const bool is_alone = manager.running() == 0;
      const Answer answer = manager.ask(prompt, manager.running());
      const bool admitted = manager.step(prompt);
      if (!answer.room || answer.room->status == AllocStatus::ok) {
        ASSERT_EQ(admitted, answer.room.has_value()) << seed << ", round " << round;
      } else {
        ASSERT_TRUE(!admitted || is_alone) << seed << ", round " << round;
      }
      if (admitted) {
        ASSERT_EQ(answer.room->cached_tokens, manager.cached()) << seed << ", round " << round;
      }
      ok += admitted;
      later += answer.room && !admitted;
      cached += manager.cached() != 0;
      while (manager.running() != 0 && random() % 3 != 0) manager.end(random() % manager.running());
    }
    ASSERT_THAT(fsck(manager.memory()).violations, IsEmpty());
  }
  EXPECT_GT(ok, 1'000u);
  EXPECT_GT(later, 300u);
  EXPECT_GT(cached, 500u);
}

}  // namespace
}  // namespace kvhive::testing
