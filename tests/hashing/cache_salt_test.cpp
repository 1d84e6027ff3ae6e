#include "hashing/cache_salt.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace kvhive {
namespace {

std::vector<TokenId> counting(std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

/// So that a router can compute what events show: printf 'kvhive cache salt\0alice' | sha256sum
TEST(CacheSalt, TheKeyIsTheBeginningOfASha256) {
  EXPECT_EQ(salt_key("alice"), (ExtraKey{0x02693c6fea9c4ae2, 0xbe25a76312ccd469}));
}

/// So that a router can compute it: printf 'kvhive adapter\\0004:poetalice' | sha256sum
TEST(CacheSalt, AnAdaptersNameIsAPartOfTheKey) {
  std::set<ExtraKey> seen;
  for (const char* adapter : {"", "poet", "poetalice", "4:poet"})
    for (const char* salt : {"", "alice", "poet", "4:poetalice"})
      EXPECT_TRUE(seen.insert(start_key(salt, adapter)).second) << adapter << " and " << salt;
  EXPECT_EQ(start_key("alice", ""), salt_key("alice"));
  EXPECT_TRUE(is_none(start_key("", "")));
}

TEST(CacheSalt, NoSaltIsNoKey) { EXPECT_TRUE(is_none(salt_key(""))); }

TEST(CacheSalt, EverySaltHasAKeyOfItsOwn) {
  std::set<ExtraKey> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(salt_key(std::to_string(i))).second);
  EXPECT_TRUE(seen.insert(salt_key(std::string(1, '\0'))).second);
  EXPECT_TRUE(seen.insert(salt_key(std::string(2, '\0'))).second);
  EXPECT_TRUE(seen.insert(salt_key(std::string(128, 'a'))).second);
  EXPECT_TRUE(seen.insert(salt_key(std::string(127, 'a'))).second);
}

TEST(CacheSalt, IsTheFirstBlocksAndAllLaterNamesFollowFromIt) {
  const HashSecret secret = random_hash_secret();
  const BlockHasher hasher(secret);
  const auto tokens = counting(12);
  std::vector<Hash128> plain, salted, other, in_steps;
  hasher.extend(plain, DomainId{0}, tokens, 4);
  hasher.extend(salted, DomainId{0}, tokens, 4, salt_key("alice"));
  hasher.extend(other, DomainId{0}, tokens, 4, salt_key("bob"));
  ASSERT_EQ(salted.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NE(salted[i], plain[i]);
    EXPECT_NE(salted[i], other[i]);
  }
  EXPECT_EQ(salted[1], hasher.child(salted[0], std::span(tokens).subspan(4, 4)));
  for (std::size_t count = 0; count <= 12; ++count)
    hasher.extend(in_steps, DomainId{0}, std::span(tokens).first(count), 4, salt_key("alice"));
  EXPECT_EQ(in_steps, salted);
}

}  // namespace
}  // namespace kvhive
