#include "hashing/sequence_names.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace kvhive {
namespace {

constexpr std::size_t kSize = 4;
constexpr GroupId kFullGroup{0}, kWindowed{1};

CacheGroups full_and_window() {
  CacheGroups groups;
  groups.count = 2;
  groups.group[1] = {CacheKind::sliding_window, 6};
  return groups;
}

std::vector<TokenId> counting(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class SequenceNamesTest : public ::testing::Test {
 protected:
  SequenceNames named(const std::vector<TokenId>& tokens, const ExtraKey& start = kNoExtraKey,
                      const CacheGroups& groups = full_and_window()) {
    SequenceNames names(groups, DomainId{3}, kSize, start);
    names.extend(hasher, tokens);
    return names;
  }

  HashSecret secret = random_hash_secret();
  BlockHasher hasher{secret};
};

TEST_F(SequenceNamesTest, OneFullGroupHasTheChainAndNoExtraKeys) {
  const auto tokens = counting(0, 18);
  const SequenceNames names = named(tokens, kNoExtraKey, {});
  std::vector<Hash128> chain;
  hasher.extend(chain, DomainId{3}, tokens, kSize);
  EXPECT_TRUE(std::ranges::equal(names.names(kFullGroup), chain));
  EXPECT_TRUE(names.extras(kFullGroup).empty());
}

TEST_F(SequenceNamesTest, ABlockOfAWindowIsNamedByItsTokensAndADigestOfWhatIsBefore) {
  const auto tokens = counting(0, 12);
  const SequenceNames names = named(tokens);
  const ExtraKey first = hasher.digest(kNoExtraKey, std::span(tokens).first(4));
  const ExtraKey second = hasher.digest(first, std::span(tokens).subspan(4, 4));
  ASSERT_EQ(names.extras(kWindowed).size(), 3u);
  EXPECT_TRUE(is_none(names.extras(kWindowed)[0]));
  EXPECT_EQ(names.extras(kWindowed)[1], first);
  EXPECT_EQ(names.extras(kWindowed)[2], second);
  const Hash128 root = hasher.root(DomainId{3}, kWindowed);
  EXPECT_EQ(names.names(kWindowed)[2], hasher.child(root, std::span(tokens).subspan(8, 4), second));
}

TEST_F(SequenceNamesTest, OneTokenFarBeforeChangesTheNamesOfAllGroups) {
  auto tokens = counting(0, 40);
  const SequenceNames names = named(tokens);
  tokens[1] = 1000;
  const SequenceNames changed = named(tokens);
  for (const GroupId group : {kFullGroup, kWindowed})
    for (std::size_t i = 0; i < names.blocks(); ++i)
      EXPECT_NE(names.names(group)[i], changed.names(group)[i]) << i;
}

TEST_F(SequenceNamesTest, NoTwoGroupsShareAName) {
  const SequenceNames names = named(counting(0, 8));
  EXPECT_NE(names.names(kFullGroup)[0], names.names(kWindowed)[0]);
}

TEST_F(SequenceNamesTest, AStartChangesAllThatFollows) {
  const auto tokens = counting(0, 12);
  const ExtraKey start{5, 6};
  const SequenceNames plain = named(tokens), salted = named(tokens, start);
  for (const GroupId group : {kFullGroup, kWindowed}) {
    ASSERT_EQ(salted.extras(group).size(), 3u);
    EXPECT_EQ(salted.extras(group)[0], start);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NE(plain.names(group)[i], salted.names(group)[i]) << i;
  }
  EXPECT_TRUE(is_none(salted.extras(kFullGroup)[1]));
}

TEST_F(SequenceNamesTest, ExtendingInStepsGivesTheSame) {
  const auto tokens = counting(0, 30);
  const SequenceNames at_once = named(tokens, {1, 2});
  SequenceNames in_steps(full_and_window(), DomainId{3}, kSize, {1, 2});
  for (std::size_t count = 0; count <= tokens.size(); ++count)
    in_steps.extend(hasher, std::span(tokens).first(count));
  for (const GroupId group : {kFullGroup, kWindowed}) {
    EXPECT_TRUE(std::ranges::equal(in_steps.names(group), at_once.names(group)));
    EXPECT_TRUE(std::ranges::equal(in_steps.extras(group), at_once.extras(group)));
  }
}

/// Of two rows of six, the second block has the last two.
TEST_F(SequenceNamesTest, ABlockOfAnEmbeddedPromptHasADigestOfItsRowsInItsExtraKey) {
  const auto embedded = [&](std::vector<float> rows, const ExtraKey& start = kNoExtraKey) {
    auto tokens = std::vector<TokenId>(rows.size() / 2, kEmbedded);
    tokens.resize(12, 7);
    SequenceNames names(
        full_and_window(), DomainId{3}, kSize, start,
        std::make_shared<EmbeddedPrompt>(*EmbeddedPrompt::make(2, std::move(rows))));
    names.extend(hasher, tokens);
    return names;
  };
  std::vector<float> rows(12);
  std::iota(rows.begin(), rows.end(), 0.5f);
  const SequenceNames names = embedded(rows), equal = embedded(rows);
  std::vector<float> last_row = rows, first_row = rows;
  last_row[11] += 1;
  first_row[0] += 1;
  const SequenceNames other_end = embedded(last_row), other_start = embedded(first_row);
  const SequenceNames salted = embedded(rows, {1, 2});
  for (const GroupId group : {kFullGroup, kWindowed}) {
    ASSERT_EQ(names.extras(group).size(), 3u);
    ASSERT_EQ(other_end.extras(group).size(), 3u);
    EXPECT_TRUE(std::ranges::equal(names.names(group), equal.names(group)));
    EXPECT_TRUE(std::ranges::equal(names.extras(group), equal.extras(group)));
    EXPECT_EQ(names.names(group)[0], other_end.names(group)[0]);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NE(names.names(group)[i], other_start.names(group)[i]) << i;
      EXPECT_NE(names.names(group)[i], salted.names(group)[i]) << i;
    }
    for (std::size_t i = 1; i < 3; ++i)
      EXPECT_NE(names.names(group)[i], other_end.names(group)[i]) << i;
    EXPECT_NE(names.extras(group)[1], other_end.extras(group)[1]) << "compared, not the name alone";
  }
  EXPECT_TRUE(is_none(names.extras(kFullGroup)[2])) << "tokens only";
  EXPECT_NE(names.names(kFullGroup)[0],
            named(std::vector<TokenId>(4, kEmbedded)).names(kFullGroup)[0]);
}

TEST(EmbeddedPrompt, RefusesWhatIsNoNumber) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const auto prompt = EmbeddedPrompt::make(2, {0, 1, 2, bad});
    ASSERT_FALSE(prompt.has_value());
    EXPECT_EQ(prompt.error().code, Errc::bad_argument);
    EXPECT_NE(prompt.error().text.find("prompt_embeds: value 1 of row 1 is"), std::string::npos);
  }
}

TEST_F(SequenceNamesTest, DigestsDependOnSecretTokensAndWhatIsBefore) {
  const auto tokens = counting(0, 4), others = counting(1, 4);
  const HashSecret other = random_hash_secret();
  const ExtraKey digest = hasher.digest(kNoExtraKey, tokens);
  EXPECT_FALSE(is_none(digest));
  EXPECT_EQ(digest, hasher.digest(kNoExtraKey, tokens));
  EXPECT_NE(digest, hasher.digest(kNoExtraKey, others));
  EXPECT_NE(digest, hasher.digest({0, 1}, tokens));
  EXPECT_NE(digest, BlockHasher(other).digest(kNoExtraKey, tokens));
}

}  // namespace
}  // namespace kvhive
