// Blocks whose names were made to collide. Under a pool's own secret they do not collide. Where
// they do collide, no prompt is served another prompt's block, and at most one index bucket of
// hints is lost.

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "pool/care/fsck.hpp"
#include "tests/pool/crafted_collisions.hpp"
#include "tests/pool/prompt_oracle.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Blocks = std::vector<std::vector<TokenId>>;

constexpr std::size_t kCount = 1000;
constexpr DomainId kVictim{1}, kAttacker{2};

/// A pool whose secret is xxHash's public default.
PoolMemory pool_with_known_secret(const PoolGeometry& geometry) {
  PoolMemory memory = private_pool(geometry);
  PoolHeader& header = memory.control().header;
  header.secret = secret_of_xxh3();
  header.checksum = checksum_of(header);
  memory.control().copy = header;
  for (const ProcessSlot slot : {ProcessSlot{0}, ProcessSlot{1}}) occupy(memory, slot);
  return memory;
}

std::set<std::pair<std::uint64_t, std::uint64_t>> names_of(const BlockHasher& hasher,
                                                           const Blocks& blocks,
                                                           DomainId domain = kAttacker) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> names;
  for (const auto& tokens : blocks) {
    const Hash128 name = hasher.child(hasher.root(domain), tokens);
    names.emplace(name.low, name.high);
  }
  return names;
}

/// Two sets of blocks that collide under `secret`.
std::map<std::string, Blocks> corpora(const HashSecret& secret, DomainId domain = kAttacker) {
  return {{"16 tokens", colliding_blocks_of_16(BlockHasher(secret).root(domain), kCount)},
          {"64 tokens", colliding_blocks_of_64(kCount)}};
}

TEST(CraftedCollisions, HaveOneNameUnderTheSecretTheyWereMadeFor) {
  const HashSecret known = secret_of_xxh3();
  for (const auto& [kind, blocks] : corpora(known)) {
    EXPECT_THAT(std::set<std::vector<TokenId>>(blocks.begin(), blocks.end()), SizeIs(kCount));
    EXPECT_THAT(names_of(BlockHasher(known), blocks), SizeIs(1)) << kind;
  }
}

TEST(CraftedCollisions, HaveDifferentNamesUnderARandomSecret) {
  for (int i = 0; i < 20; ++i) {
    const HashSecret ours = random_hash_secret();
    const BlockHasher hasher(ours);
    for (const auto& [kind, blocks] : corpora(secret_of_xxh3()))
      EXPECT_THAT(names_of(hasher, blocks), SizeIs(kCount)) << kind;
    for (std::uint64_t seed = 0; seed < kCount; ++seed) {
      const auto [one, other] = complementary_blocks(seed);
      EXPECT_THAT(names_of(hasher, {one, other}), SizeIs(2)) << seed;
    }
  }
}

/// Two engines serve colliding prompts of one or two blocks, in two domains, and check every byte
/// of every hit. One pool has room for all blocks, the other does not.
class ServedCollisions : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::string>> {};

TEST_P(ServedCollisions, AreNeverServedForOneAnother) {
  const auto& [device_blocks, kind] = GetParam();
  const std::uint32_t block_tokens = kind == "16 tokens" ? 16 : 64;
  const PoolMemory memory =
      pool_with_known_secret(small_geometry(device_blocks, 16, block_tokens, 2));
  const Blocks blocks = corpora(memory.control().header.secret).at(kind);
  CheckedEngine::Tally tally;
  CheckedEngine engines[] = {{memory, ProcessSlot{0}, tally}, {memory, ProcessSlot{1}, tally}};
  std::mt19937 random(device_blocks);
  for (int i = 0; i < (kUnderSanitizer ? 4'000 : 20'000); ++i) {
    CheckedEngine& engine = engines[random() % 2];
    std::vector<TokenId> tokens = blocks[random() % 64];  // few blocks, so that prompts repeat
    if (random() % 2 == 0) tokens = joined(tokens, blocks[random() % 4]);
    const DomainId domain = random() % 4 == 0 ? kVictim : kAttacker;
    engine.serve(Prompt(engine.pool(), tokens, domain));
    if (engine.running() > 3) engine.finish_one();
    ASSERT_EQ(tally.wrong, 0u) << "prompt " << i;
  }
  std::printf("%lu hits of %lu prompts, 0 wrong\n", tally.hits, tally.served);
  EXPECT_GT(tally.hits, 100u) << "too few hits to prove anything";
  for (CheckedEngine& engine : engines) engine.finish_all();
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Pools, ServedCollisions,
                         ::testing::Combine(::testing::Values(24u, 400u),
                                            ::testing::Values("16 tokens", "64 tokens")));

// -- many collisions

/// Prompts of one domain, three blocks each; measures how many of their blocks are found again.
class Regular {
 public:
  Regular(BlockPool& pool, DomainId domain, std::size_t prompts) : pool_(pool) {
    for (std::size_t i = 0; i < prompts; ++i)
      prompts_.emplace_back(pool, counting(TokenId(i * 1000), 48), domain);
  }
  void come() {
    for (const Prompt& prompt : prompts_) leave_idle(pool_, prompt);
  }
  double hit_rate() {
    std::size_t found = 0, wanted = 0;
    for (const Prompt& prompt : prompts_) {
      const PrefixHit hit = match_all(pool_, prompt);
      found += hit.blocks.size();
      wanted += prompt.full_blocks();
      pool_.cancel(hit);
    }
    return static_cast<double>(found) / static_cast<double>(wanted);
  }

 private:
  BlockPool& pool_;
  std::vector<Prompt> prompts_;
};

/// Publishes `count` colliding blocks. The pool has room for them and for the regular prompts, so
/// that a block which is not found was lost to the collisions, not evicted.
void flood(BlockPool& attacker, std::size_t count) {
  const BlockHasher hasher = attacker.hasher();
  for (const auto& tokens : colliding_blocks_of_16(hasher.root(kAttacker), count))
    leave_idle(attacker, Prompt(attacker, tokens, kAttacker));
}

TEST(FloodOfCollisions, CostsOtherDomainsAtMostOnePercentOfHits) {
  constexpr std::size_t kPrompts = 1200;
  for (const bool comes_first : {false, true}) {
    const PoolMemory memory = pool_with_known_secret(small_geometry(8192, 0, 16, 2));
    BlockPool victim(memory, ProcessSlot{0}), attacker(memory, ProcessSlot{1});
    Regular regular(victim, kVictim, kPrompts);
    if (comes_first) flood(attacker, 3 * kPrompts);
    regular.come();
    const double before = regular.hit_rate();
    if (!comes_first) flood(attacker, 3 * kPrompts);
    const double after = regular.hit_rate();
    std::printf("flood %s: hit rate %.4f, then %.4f\n", comes_first ? "before" : "after", before,
                after);
    EXPECT_GE(comes_first ? after : after / before, 0.99);
    EXPECT_THAT(fsck(memory, Moment::quiescent).violations, IsEmpty());
  }
}

}  // namespace
}  // namespace kvhive::testing
