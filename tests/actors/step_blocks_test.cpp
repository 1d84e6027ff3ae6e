#include "actors/prefix/step_blocks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kSize = 4;

class StepBlocksTest : public ::testing::Test {
 protected:
  struct Sequence {
    std::vector<TokenId> tokens;
    DomainId domain;
    SequenceNames names;
    SequenceContent content() const { return {domain, names, tokens}; }
  };
  static Sequence sequence(std::vector<TokenId> tokens, DomainId domain = {},
                           const ExtraKey& salt = kNoExtraKey, const CacheGroups& groups = {}) {
    Sequence made{std::move(tokens), domain, SequenceNames(groups, domain, kSize, salt)};
    made.names.extend(BlockHasher({}), made.tokens);
    return made;
  }

  static constexpr GroupId kFull{0};
  const std::vector<TokenId> tokens_{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<BlockId> table_{BlockId{7}, BlockId{8}, BlockId{9}};
  const Sequence owner_ = sequence(tokens_);
  StepBlocks step_{{}, kSize};
};

TEST_F(StepBlocksTest, FindsWhatTheStepFillsUpToTheFirstThatItDoesNot) {
  step_.add(owner_.content(), kFull, table_, 1, 3);
  EXPECT_THAT(step_.find(sequence(tokens_).content(), kFull, 0, 3), IsEmpty());
  EXPECT_THAT(step_.find(sequence(tokens_).content(), kFull, 1, 2),
              ElementsAre(BlockId{8}, BlockId{9}));
  std::vector<TokenId> other = tokens_;
  other[9] = 0;
  EXPECT_THAT(step_.find(sequence(other).content(), kFull, 1, 2), ElementsAre(BlockId{8}));
}

TEST_F(StepBlocksTest, FindsNothingOfAnotherDomainOrSalt) {
  step_.add(owner_.content(), kFull, table_, 0, 3);
  EXPECT_THAT(step_.find(sequence(tokens_, DomainId{2}).content(), kFull, 0, 3), IsEmpty());
  EXPECT_THAT(step_.find(sequence(tokens_, {}, {5, 6}).content(), kFull, 0, 3), IsEmpty());
}

TEST_F(StepBlocksTest, FindsNothingOfASequenceFromBeforeAReset) {
  SequenceContent old = owner_.content(), now = owner_.content();
  now.resets = {1};
  step_.add(old, kFull, table_, 0, 3);
  EXPECT_THAT(step_.find(now, kFull, 0, 3), IsEmpty());
  EXPECT_THAT(step_.find(old, kFull, 0, 3), SizeIs(3));
}

/// Two sequences of which the shorter one has no extra keys yet, because it has one full block.
TEST_F(StepBlocksTest, AWindowsFirstBlockHasNoDigest) {
  CacheGroups groups;
  groups.group[0] = {CacheKind::sliding_window, 8};
  StepBlocks step(groups, kSize);
  const Sequence owner = sequence(tokens_, {}, kNoExtraKey, groups);
  step.add(owner.content(), kFull, table_, 0, 3);
  EXPECT_THAT(step.find(sequence({1, 2, 3, 4, 5}, {}, kNoExtraKey, groups).content(), kFull, 0, 1),
              ElementsAre(BlockId{7}));
}

/// With names that say the same about different contents.
TEST_F(StepBlocksTest, ComparesTokensFromTheStartOn) {
  step_.add(owner_.content(), kFull, table_, 0, 3);
  std::vector<TokenId> other = tokens_;
  other[1] = 0;
  const SequenceContent collides{{}, owner_.names, other};
  EXPECT_THAT(step_.find(collides, kFull, 0, 3), IsEmpty());
  EXPECT_THAT(step_.find(collides, kFull, 1, 2), IsEmpty());
}

/// The prompt's rows are in extra keys; here of blocks 0 and 1.
TEST_F(StepBlocksTest, FindsAPromptOfEmbeddingsByItsRows) {
  const auto embedded = [&](float value) {
    const auto prompt = *EmbeddedPrompt::make(1, {1, value, 3, 4, 5});
    Sequence made{
        tokens_,
        {},
        SequenceNames({}, {}, kSize, kNoExtraKey, std::make_shared<EmbeddedPrompt>(prompt))};
    made.names.extend(BlockHasher({}), made.tokens);
    return made;
  };
  const Sequence owner = embedded(2), equal = embedded(2), other = embedded(2.5);
  step_.add(owner.content(), kFull, table_, 0, 3);
  EXPECT_THAT(step_.find(equal.content(), kFull, 0, 3), SizeIs(3));
  EXPECT_THAT(step_.find(other.content(), kFull, 0, 3), IsEmpty());
  EXPECT_THAT(step_.find(owner_.content(), kFull, 0, 3), IsEmpty());
}

TEST_F(StepBlocksTest, OfEqualContentsTheFirstIsFound) {
  step_.add(owner_.content(), kFull, table_, 0, 1);
  const Sequence again = sequence(tokens_);
  step_.add(again.content(), kFull, std::vector{BlockId{20}}, 0, 1);
  EXPECT_THAT(step_.find(again.content(), kFull, 0, 1), ElementsAre(BlockId{7}));
}

}  // namespace
}  // namespace kvhive::testing
