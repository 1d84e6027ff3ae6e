#include "hashing/block_hash.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <utility>

namespace kvhive {
namespace {

using Names = std::set<std::pair<std::uint64_t, std::uint64_t>>;

std::pair<std::uint64_t, std::uint64_t> pair_of(Hash128 hash) { return {hash.low, hash.high}; }

std::vector<TokenId> counting(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

HashSecret fixed_secret() {
  HashSecret secret{};
  for (std::size_t i = 0; i < secret.bytes.size(); ++i) secret.bytes[i] = std::byte(i * 37 + 11);
  return secret;
}

class BlockHasherTest : public ::testing::TestWithParam<HashAlgorithm> {
 protected:
  HashSecret secret = fixed_secret();
  BlockHasher hasher{secret, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(By, BlockHasherTest,
                         ::testing::Values(HashAlgorithm::xxhash, HashAlgorithm::sha256),
                         [](const auto& by) { return std::string(to_string(by.param)); });

TEST_P(BlockHasherTest, IsAFunctionOfItsInput) {
  const HashSecret same = fixed_secret();
  const BlockHasher other(same, GetParam());
  const auto tokens = counting(0, 16);
  EXPECT_EQ(hasher.root(DomainId{1}), other.root(DomainId{1}));
  EXPECT_EQ(hasher.child(hasher.root(DomainId{1}), tokens),
            other.child(other.root(DomainId{1}), tokens));
}

TEST_P(BlockHasherTest, AnotherSecretGivesOtherNames) {
  const HashSecret one = random_hash_secret();
  const HashSecret two = random_hash_secret();
  EXPECT_NE(one.bytes, two.bytes);
  const auto tokens = counting(0, 16);
  EXPECT_NE(BlockHasher(one, GetParam()).child({}, tokens),
            BlockHasher(two, GetParam()).child({}, tokens));
}

TEST_P(BlockHasherTest, NamesDependOnEveryTokenTheirOrderAndTheParent) {
  Names seen;
  const auto is_new = [&](Hash128 name) { return seen.insert(pair_of(name)).second; };
  const Hash128 root = hasher.root(DomainId{0});
  const auto tokens = counting(0, 16);
  EXPECT_TRUE(is_new(hasher.child(root, tokens)));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (const TokenId other : {-1, 1000, tokens[i] ^ (1 << 30)}) {
      auto changed = tokens;
      changed[i] = other;
      EXPECT_TRUE(is_new(hasher.child(root, changed)));
    }
  }
  auto swapped = tokens;
  std::swap(swapped[3], swapped[4]);
  EXPECT_TRUE(is_new(hasher.child(root, swapped)));
  EXPECT_TRUE(is_new(hasher.child({root.low ^ 1, root.high}, tokens)));
  EXPECT_TRUE(is_new(hasher.child({root.low, root.high ^ 1}, tokens)));
}

TEST_P(BlockHasherTest, DomainsHaveDifferentRoots) {
  Names seen;
  for (int domain = 0; domain < 65536; ++domain)
    seen.insert(pair_of(hasher.root(DomainId{std::uint16_t(domain)})));
  EXPECT_EQ(seen.size(), 65536u);
}

TEST_P(BlockHasherTest, ExtraKeyCannotPassForTokens) {
  const auto tokens = counting(0, 4);
  const ExtraKey extra{0x0000'0005'0000'0004, 0x0000'0007'0000'0006};
  const Hash128 with_extra = hasher.child({}, tokens, extra);
  EXPECT_NE(with_extra, hasher.child({}, tokens));
  EXPECT_NE(with_extra, hasher.child({}, counting(0, 8)));
  EXPECT_NE(with_extra, hasher.child({}, tokens, ExtraKey{extra[1], extra[0]}));
}

TEST_P(BlockHasherTest, NoExtraKeyIsTheSameAsNone) {
  const auto tokens = counting(0, 4);
  EXPECT_EQ(hasher.child({}, tokens, kNoExtraKey), hasher.child({}, tokens));
}

TEST_P(BlockHasherTest, RootCannotPassForABlock) {
  constexpr std::uint64_t kRootTag = 0x6b76686976652d72;
  EXPECT_NE(hasher.root(DomainId{0}), hasher.child({kRootTag, 0}, counting(0, 1)));
  EXPECT_NE(hasher.root(DomainId{1}), hasher.child({kRootTag, 1}, counting(0, 1)));
}

TEST_P(BlockHasherTest, AcceptsBlocksOf1To1024Tokens) {
  Names seen;
  for (const std::size_t size : {1, 2, 15, 16, 17, 240, 241, 1023, 1024})
    EXPECT_TRUE(seen.insert(pair_of(hasher.child({}, counting(0, size)))).second);
}

TEST_P(BlockHasherTest, ExtendNamesFullBlocksOnly) {
  const auto tokens = counting(0, 4 * 4 + 3);
  std::vector<Hash128> chain;
  hasher.extend(chain, DomainId{5}, tokens, 4);
  ASSERT_EQ(chain.size(), 4u);
  Hash128 parent = hasher.root(DomainId{5});
  for (std::size_t i = 0; i < 4; ++i) {
    parent = hasher.child(parent, std::span(tokens).subspan(i * 4, 4));
    EXPECT_EQ(chain[i], parent);
  }
}

TEST_P(BlockHasherTest, ExtendGoesOnWhereItStopped) {
  const auto tokens = counting(0, 64);
  std::vector<Hash128> at_once, in_steps;
  hasher.extend(at_once, DomainId{0}, tokens, 4);
  for (std::size_t count = 0; count <= 64; ++count)
    hasher.extend(in_steps, DomainId{0}, std::span(tokens).first(count), 4);
  EXPECT_EQ(in_steps, at_once);
}

TEST_P(BlockHasherTest, ExtendByLessThanABlockAddsNoName) {
  std::vector<Hash128> chain;
  hasher.extend(chain, DomainId{0}, counting(0, 3), 4);
  hasher.extend(chain, DomainId{0}, {}, 4);
  EXPECT_TRUE(chain.empty());
}

TEST_P(BlockHasherTest, EqualBlocksInOneSequenceHaveDifferentNames) {
  const std::vector<TokenId> tokens(400, 7);
  std::vector<Hash128> chain;
  hasher.extend(chain, DomainId{0}, tokens, 4);
  Names seen;
  for (const Hash128 name : chain) seen.insert(pair_of(name));
  EXPECT_EQ(seen.size(), 100u);
}

/// As Python's hashlib computes it of the secret's first 32 bytes and the same input.
TEST(BlockHasherSha256, IsSha256CutTo128Bits) {
  const HashSecret secret = fixed_secret();
  const BlockHasher hasher(secret, HashAlgorithm::sha256);
  const Hash128 root = hasher.root(DomainId{1}, GroupId{2});
  EXPECT_EQ(root, (Hash128{0xb84b46ac282133df, 0x43c9b27a9dcdbe81}));
  EXPECT_EQ(hasher.child(root, counting(5, 4)), (Hash128{0x10b0fcb961771cbd, 0x9235be71aea47ad4}));
  EXPECT_NE(root, BlockHasher(secret).root(DomainId{1}, GroupId{2}));
}

TEST(BlockHasherDeathTest, BlockBeyond1024TokensAborts) {
  const HashSecret secret = fixed_secret();
  const auto tokens = counting(0, 1025);
  EXPECT_DEATH((void)BlockHasher(secret).child({}, tokens), "check failed.* 1025");
}

}  // namespace
}  // namespace kvhive
