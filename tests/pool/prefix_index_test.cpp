#include "pool/prefix_index.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace kvhive {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using CacheStatus = PrefixIndex::HintUse;

struct Table {
  explicit Table(std::size_t buckets) : memory(buckets), index(memory.data(), buckets) {}

  std::vector<std::uint32_t> found(Hash128 hash) const {
    std::vector<std::uint32_t> blocks;
    index.for_each(hash, [&](BlockId block) {
      blocks.push_back(block.value);
      return CacheStatus::keep;
    });
    return blocks;
  }

  std::vector<IndexBucket> memory;
  PrefixIndex index;
};

constexpr Hash128 kHash{0x10, 0xaaaa'bbbb'0000'0003};
constexpr Hash128 kSameBuckets{0x10, 0xcccc'dddd'0000'0003};

TEST(PrefixIndex, FindsWhatWasInserted) {
  Table t(8);
  EXPECT_THAT(t.found(kHash), IsEmpty());
  t.index.insert(kHash, BlockId{7});
  EXPECT_THAT(t.found(kHash), ElementsAre(7));
  EXPECT_THAT(t.found(kSameBuckets), IsEmpty());
}

TEST(PrefixIndex, KeepsEqualContentsSideBySide) {
  Table t(8);
  t.index.insert(kHash, BlockId{7});
  t.index.insert(kHash, BlockId{9});
  t.index.insert(kHash, BlockId{7});
  EXPECT_THAT(t.found(kHash), ElementsAre(7, 9));
  t.index.erase(kHash, BlockId{7});
  EXPECT_THAT(t.found(kHash), ElementsAre(9));
}

TEST(PrefixIndex, ErasesOnlyTheBlockUnderThatHash) {
  Table t(8);
  t.index.insert(kHash, BlockId{7});
  t.index.insert(kSameBuckets, BlockId{7});
  t.index.erase(kHash, BlockId{7});
  t.index.erase(kHash, BlockId{7});
  EXPECT_THAT(t.found(kHash), IsEmpty());
  EXPECT_THAT(t.found(kSameBuckets), ElementsAre(7));
}

TEST(PrefixIndex, OverflowsIntoTheSecondBucket) {
  Table t(8);
  for (std::uint32_t id = 1; id <= 16; ++id) t.index.insert(kHash, BlockId{id});
  EXPECT_EQ(t.found(kHash).size(), 16u);
}

TEST(PrefixIndex, TwoFullBucketsForgetOneHint) {
  Table t(8);
  for (std::uint32_t id = 1; id <= 16; ++id) t.index.insert(kHash, BlockId{id});
  t.index.insert(kSameBuckets, BlockId{17});
  EXPECT_THAT(t.found(kSameBuckets), ElementsAre(17));
  EXPECT_EQ(t.found(kHash).size(), 15u);
}

TEST(PrefixIndex, WorksWithASingleBucket) {
  Table t(1);
  const auto hash = [](std::uint64_t tag) { return Hash128{tag, tag << 32}; };
  for (std::uint32_t id = 1; id <= 20; ++id) t.index.insert(hash(id), BlockId{id});
  EXPECT_THAT(t.found(hash(20)), ::testing::Contains(20));
  t.index.erase(hash(20), BlockId{20});
  EXPECT_THAT(t.found(hash(20)), ::testing::Not(::testing::Contains(20)));
}

TEST(PrefixIndex, ManyEqualBlocksDoNotPushOutOtherHints) {
  Table t(1);
  const Hash128 other{7, std::uint64_t{7} << 32};
  t.index.insert(other, BlockId{100});
  for (std::uint32_t id = 1; id <= 40; ++id) t.index.insert(kHash, BlockId{id});
  EXPECT_THAT(t.found(other), ::testing::Contains(100));
  EXPECT_THAT(t.found(kHash), ::testing::Contains(1))
      << "the first published of equal blocks is found";
}

TEST(PrefixIndex, DropsWhatTheVisitorRejects) {
  Table t(8);
  t.index.insert(kHash, BlockId{7});
  t.index.insert(kHash, BlockId{9});
  t.index.for_each(kHash, [](BlockId block) {
    return block.value == 7 ? CacheStatus::drop : CacheStatus::keep;
  });
  EXPECT_THAT(t.found(kHash), ElementsAre(9));
}

TEST(PrefixIndex, AGlanceTellsWhetherThereIsOnlyOne) {
  Table t(8);
  EXPECT_EQ(t.index.glance(kHash).block, kNullBlock);
  EXPECT_FALSE(t.index.glance(kHash).is_only);
  t.index.insert(kHash, BlockId{7});
  EXPECT_EQ(t.index.glance(kHash).block, BlockId{7});
  EXPECT_TRUE(t.index.glance(kHash).is_only);
  EXPECT_EQ(t.index.glance(kSameBuckets).block, kNullBlock);
  t.index.insert(kHash, BlockId{9});
  EXPECT_FALSE(t.index.glance(kHash).is_only);
}

TEST(PrefixIndex, ABucketThatWasFullOnceAlwaysLeadsToTheSecond) {
  Table t(8);
  for (std::uint32_t id = 1; id <= 8; ++id) t.index.insert(kHash, BlockId{id});
  t.index.insert(kSameBuckets, BlockId{9});
  for (std::uint32_t id = 1; id <= 8; ++id) t.index.erase(kHash, BlockId{id});
  EXPECT_THAT(t.found(kSameBuckets), ElementsAre(9));
  t.index.insert(kHash, BlockId{1});
  EXPECT_FALSE(t.index.glance(kHash).is_only);
  const std::uint64_t hint = t.memory[3].way[0].load();
  EXPECT_TRUE(t.index.leads_to(3, hint, kSameBuckets));
  t.index.erase(kSameBuckets, BlockId{9});
  EXPECT_THAT(t.found(kSameBuckets), IsEmpty());
}

TEST(PrefixIndex, AHintInTheSecondBucketCountsOnlyIfTheFirstLeadsThere) {
  Table t(8);
  t.memory[3].way[0].store((kHash.high & 0xffffffff00000000) | 9);
  EXPECT_FALSE(t.index.leads_to(3, t.memory[3].way[0].load(), kHash));
}

TEST(PrefixIndex, TagOfZeroIsATagLikeAnyOther) {
  Table t(8);
  const Hash128 hash{5, 3};
  t.index.insert(hash, BlockId{7});
  EXPECT_THAT(t.found(hash), ElementsAre(7));
}

}  // namespace
}  // namespace kvhive
