// A build of hashing and pool whose block names have eight bits. Names collide all the time; only
// the comparison of tokens and parents tells blocks apart.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "pool/care/fsck.hpp"
#include "tests/pool/prompt_oracle.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

constexpr int kPrompts = kUnderSanitizer ? 20'000 : 100'000;

TEST(ShortHash, NamesHaveEightBits) {
  const PoolMemory memory = private_pool(small_geometry(4));
  const BlockPool pool(memory, ProcessSlot{0});
  std::set<std::uint64_t> lows, highs;
  for (TokenId i = 0; i < 20'000; ++i) {
    const Hash128 name = Prompt(pool, counting(i * 7, 4)).chain[0];
    lows.insert(name.low);
    highs.insert(name.high);
  }
  EXPECT_EQ(lows.size(), 256u);
  EXPECT_LE(highs.size(), 256u);
}

/// Two engines serve prompts of random tokens and shared prefixes in two domains, with pools that
/// evict and a pool that does not.
class ShortHash : public ::testing::TestWithParam<std::uint32_t> {};  // device blocks

/// The number of published blocks whose name an earlier block with other content has, too.
std::size_t collisions_in(const PoolMemory& memory) {
  std::map<std::uint64_t, std::uint64_t> first;  // name -> uid
  std::size_t collisions = 0;
  for (std::uint32_t id = 1; id < memory.geometry().device_blocks; ++id) {
    const BlockDescriptor& d = memory.descriptors()[id];
    if (BlockWord{d.word.load()}.state() != BlockState::ready) continue;
    collisions += first.emplace(d.hash_low.load(), d.uid.load()).first->second != d.uid.load();
  }
  return collisions;
}

TEST_P(ShortHash, NeverMakesAWrongHit) {
  const PoolMemory memory = private_pool(small_geometry(GetParam(), 64));
  CheckedEngine::Tally tally;
  CheckedEngine engines[] = {{memory, ProcessSlot{0}, tally}, {memory, ProcessSlot{1}, tally}};
  occupy(memory, ProcessSlot{0});
  occupy(memory, ProcessSlot{1});
  std::mt19937 random(GetParam());
  std::vector<std::vector<TokenId>> recent(64);
  for (int i = 0; i < kPrompts; ++i) {
    std::vector<TokenId>& base = recent[random() % recent.size()];
    std::vector<TokenId> tokens;
    if (random() % 2 == 0)  // start with part of an earlier prompt
      tokens.assign(base.begin(), base.begin() + std::ptrdiff_t(random() % (base.size() + 1)));
    while (tokens.size() < 24 && (tokens.empty() || random() % 16 != 0))
      tokens.push_back(
          static_cast<TokenId>(random() % 4));  // few tokens, so that blocks are often equal
    base = tokens;
    CheckedEngine& engine = engines[random() % 2];
    const Prompt prompt(engine.pool(), tokens, DomainId{std::uint16_t(random() % 2)});
    engine.serve(prompt, random() % 8 == 0 ? Tier::host : Tier::device);
    if (engine.running() > 3) engine.finish_one();
    ASSERT_EQ(tally.wrong, 0u) << "prompt " << i;
  }
  EXPECT_GT(tally.hits, std::uint64_t(kPrompts) / 20) << "too few hits to prove anything";
  if (GetParam() > 256) {  // more blocks than names
    EXPECT_GT(collisions_in(memory), GetParam() / 8);
  }
  for (CheckedEngine& engine : engines) engine.finish_all();
  EXPECT_TRUE(fsck(memory, Moment::quiescent).is_clean());
}

INSTANTIATE_TEST_SUITE_P(Blocks, ShortHash, ::testing::Values(48u, 400u, 4000u));

/// Proves that the oracle detects a wrong hit.
TEST(ShortHash, TheOracleDetectsAWrongHit) {
  const PoolMemory memory = private_pool(small_geometry(8));
  const BlockPool pool(memory, ProcessSlot{0});
  const PromptOracle oracle(memory);
  const Prompt prompt(pool, counting(0, 8)), other(pool, counting(1, 8));
  oracle.fill(BlockId{1}, prompt, 0);
  EXPECT_TRUE(oracle.is_right(BlockId{1}, prompt, 0));
  EXPECT_FALSE(oracle.is_right(BlockId{1}, other, 0));
  EXPECT_FALSE(oracle.is_right(BlockId{1}, prompt, 1));
  EXPECT_FALSE(oracle.is_right(BlockId{1}, Prompt(pool, counting(0, 8), DomainId{1}), 0));
}

}  // namespace
}  // namespace kvhive::testing
