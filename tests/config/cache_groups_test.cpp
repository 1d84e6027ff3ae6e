#include "config/cache_groups.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

#include "tests/support/cache_groups.hpp"

namespace kvhive {
namespace {

using testing::chunks;
using testing::groups_of;
using testing::kFull;
using testing::window;

/// The hit in one group of which the blocks in `cached` are there, of blocks of 2 tokens.
std::size_t hit_of(const CacheGroup& group, const std::vector<bool>& cached) {
  return longest_hit(groups_of({group}), cached.size(), 2,
                     [&](std::size_t, std::size_t block) { return cached[block]; })
      .blocks;
}

// -- vLLM: tests/v1/core/test_single_type_kv_cache_manager.py
// --------------------------------------

TEST(CacheGroups, ChunkedLocalPossibleCachedPrefix) {  // block_size 2, attention_chunk_size 4
  const auto hit = [](std::vector<bool> cached) { return hit_of(chunks(4), cached); };
  EXPECT_EQ(hit({true}), 1u);
  EXPECT_EQ(hit({false}), 0u);
  EXPECT_EQ(hit({true, false}), 2u);  // a chunk ends there: what is before it is not read
  EXPECT_EQ(hit({true, true}), 2u);
  EXPECT_EQ(hit({true, true, false}), 2u);
  EXPECT_EQ(hit({true, true, true}), 3u);
  EXPECT_EQ(hit({true, true, true, false}), 4u);
  EXPECT_EQ(hit({false, false, false, false, false, true}), 6u);
  EXPECT_EQ(hit({true, true, false, false, true, true, true, false, false}), 8u);
}

TEST(CacheGroups, SlidingWindowPossibleCachedPrefix) {  // block_size 2, sliding_window 4
  const auto hit = [](std::vector<bool> cached) { return hit_of(window(4), cached); };
  EXPECT_EQ(hit(std::vector<bool>(10, false)), 0u);
  EXPECT_EQ(hit({true}), 1u);
  EXPECT_EQ(hit({true, false}), 1u);
  EXPECT_EQ(hit({true, true}), 2u);
  EXPECT_EQ(hit({true, true, false}), 2u);
  EXPECT_EQ(hit({true, true, true}), 3u);
  EXPECT_EQ(hit({true, true, true, false}), 3u);
  EXPECT_EQ(hit({true, true, false, true, false, false, true, true, false, true, true, true}), 12u);
  EXPECT_EQ(hit({true, true, false, true, false, false, true, true, false, false, false}), 8u);
  EXPECT_EQ(hit({true, true, false, true, false, false, true, true, false, false, false, true}),
            8u);
}

TEST(CacheGroups, SlidingWindowRemoveSkippedBlocks) {  // block_size 2, sliding_window 4
  const auto first = [](std::size_t computed) { return window(4).first_block(computed, 2); };
  EXPECT_EQ(first(0), 0u);
  EXPECT_EQ(first(4), 0u);  // token 0 is out of the window, token 1 is not
  EXPECT_EQ(first(5), 1u);
  EXPECT_EQ(first(6), 1u);
  EXPECT_EQ(first(7), 2u);
  EXPECT_EQ(first(8), 2u);
  EXPECT_EQ(first(11), 4u);
}

TEST(CacheGroups, ChunkedLocalRemoveSkippedBlocks) {  // block_size 2, attention_chunk_size 4
  const auto first = [](std::size_t computed) { return chunks(4).first_block(computed, 2); };
  EXPECT_EQ(first(0), 0u);
  EXPECT_EQ(first(3), 0u);
  EXPECT_EQ(first(4), 2u);
  EXPECT_EQ(first(6), 2u);
  EXPECT_EQ(first(12), 6u);
}

TEST(CacheGroups, FullAttentionSkipsNothing) {
  EXPECT_EQ(kFull.skipped_tokens(1'000'000), 0u);
  EXPECT_EQ(kFull.most_blocks(100, 16, 16), 7u);
}

// -- vLLM: tests/v1/core/test_kv_cache_utils.py
// ----------------------------------------------------

/// test_get_max_concurrency_for_kv_cache_config: max_model_len 16384, 1024 batched tokens, block
/// 16, window 1024.
TEST(CacheGroups, GetMaxConcurrencyForKvCacheConfig) {
  EXPECT_EQ(kFull.most_blocks(16384, 1024, 16), 1024u);
  EXPECT_EQ(window(1024).most_blocks(16384, 1024, 16), 129u);
  EXPECT_EQ(groups_of({kFull, window(1024)}).most_blocks(16384, 1024, 16), 1153u);
  EXPECT_EQ(chunks(1024).most_blocks(16384, 1024, 16), 128u);
}

TEST(CacheGroups, AShortSequenceHoldsNoMoreThanItsTokens) {
  EXPECT_EQ(window(1024).most_blocks(17, 1024, 16), 2u);
  EXPECT_EQ(chunks(1024).most_blocks(17, 1024, 16), 2u);
}

TEST(CacheGroups, AWindowedSequenceOf100000TokensIsBounded) {
  EXPECT_EQ(window(4096).most_blocks(100'000, 2048, 16), 385u);
  EXPECT_EQ(kFull.most_blocks(100'000, 2048, 16), 6250u);
}

// -- vLLM: tests/v1/core/test_prefix_caching.py test_prefill_hybrid_model
// --------------------------

class HybridHit : public ::testing::Test {
 protected:
  using Place = std::pair<std::size_t, std::size_t>;

  /// A group of full attention and two of windows of two blocks; three blocks were computed, and
  /// `evicted` are gone.
  static std::size_t without(const std::set<Place>& evicted) {
    return longest_hit(groups_of({kFull, window(32), window(32)}), 3, 16,
                       [&](std::size_t g, std::size_t i) {
                         return !evicted.contains({g, i});
                       })
        .blocks;
  }
};

TEST_F(HybridHit, TakesAllThatIsThere) { EXPECT_EQ(without({}), 3u); }

TEST_F(HybridHit, NeedsNothingOutsideTheWindow) { EXPECT_EQ(without({{1, 0}, {2, 0}}), 3u); }

TEST_F(HybridHit, NeedsAllOfFullAttention) { EXPECT_EQ(without({{0, 0}}), 0u); }

TEST_F(HybridHit, EndsWhereAnyGroupEnds) {
  EXPECT_EQ(without({{0, 2}, {1, 2}, {2, 2}}), 2u);
  EXPECT_EQ(without({{0, 2}}), 2u);
  EXPECT_EQ(without({{1, 2}}), 2u);
  EXPECT_EQ(without({{2, 2}}), 2u);
}

TEST_F(HybridHit, GroupsThatHaveDifferentPartsAgreeOnNone) {
  EXPECT_EQ(without({{0, 2}, {1, 0}, {2, 0}}), 0u);
}

// -- beyond vLLM's cases
// ---------------------------------------------------------------------------

/// The definition, tried from the longest hit on: each group has all blocks that are read behind
/// the hit; or, in a window, all from the start on.
std::size_t slow_hit(const CacheGroups& groups, std::size_t most, std::size_t block_size,
                     const std::vector<std::vector<bool>>& cached) {
  for (std::size_t hit = most; hit > 0; --hit) {
    bool is_hit = true;
    for (std::size_t g = 0; g < groups.count; ++g)
      for (std::size_t i = groups.group[g].first_block(hit * block_size, block_size); i < hit; ++i)
        is_hit &= cached[g][i];
    if (is_hit) return hit;
  }
  return 0;
}

TEST(CacheGroups, TheLongestHitIsTheLongestByDefinition) {
  std::mt19937_64 random(7);
  const auto between = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  std::size_t hits = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::size_t block_size = between(1, 4), most = between(0, 12);
    CacheGroups groups;
    groups.count = static_cast<std::uint32_t>(between(1, 4));
    std::vector<std::vector<bool>> cached(groups.count, std::vector<bool>(most));
    for (std::size_t g = 0; g < groups.count; ++g) {
      const auto span = static_cast<std::uint32_t>(between(1, 12));
      // Chunks of whole blocks: with others vLLM, too, only finds some hit, not the longest.
      groups.group[g] =
          std::array{kFull, window(span),
                     chunks(span * static_cast<std::uint32_t>(block_size))}[between(0, 2)];
      for (std::size_t i = 0; i < most; ++i) cached[g][i] = between(0, 5) != 0;
    }
    std::set<std::pair<std::size_t, std::size_t>> asked;
    const std::size_t hit =
        longest_hit(groups, most, block_size, [&](std::size_t g, std::size_t i) {
          EXPECT_TRUE(asked.insert({g, i}).second) << "asked twice";
          return bool{cached[g][i]};
        }).blocks;
    ASSERT_EQ(hit, slow_hit(groups, most, block_size, cached)) << "round " << round;
    hits += hit;
  }
  EXPECT_GT(hits, 20'000u);
}

/// A sequence that is computed in steps never holds more than the cap says.
TEST(CacheGroups, NoSequenceHoldsMoreThanTheCap) {
  for (const CacheGroup& group : {kFull, window(1), window(5), window(8), chunks(4), chunks(6)})
    for (std::size_t step = 1; step <= 9; ++step)
      for (std::size_t computed = 0; computed < 60; computed += step) {
        const std::size_t held = (computed + step + 3) / 4 - group.first_block(computed, 4);
        EXPECT_LE(held, group.most_blocks(computed + step, step, 4))
            << to_string(group) << ", " << computed << " and " << step;
      }
}

TEST(CacheGroups, TheLongestSequenceFillsTheBlocksAndNoMore) {
  const CacheGroups groups = groups_of({kFull, window(32)});
  const std::size_t longest = groups.longest_sequence(100, 64, 16, 100'000);
  EXPECT_LE(groups.most_blocks(longest, 64, 16), 100u);
  EXPECT_GT(groups.most_blocks(longest + 1, 64, 16), 100u);
  EXPECT_EQ(groups.longest_sequence(100, 64, 16, 50), 50u);
  EXPECT_EQ(groups_of({window(32)}).longest_sequence(7, 64, 16, 100'000), 100'000u);
  EXPECT_EQ(groups.longest_sequence(0, 64, 16, 50), 0u);
}

TEST(CacheGroups, HaveNames) {
  EXPECT_EQ(to_string(kFull), "full attention");
  EXPECT_EQ(to_string(window(4096)), "sliding window of 4096");
  EXPECT_EQ(to_string(chunks(8192)), "chunks of 8192");
}

}  // namespace
}  // namespace kvhive
