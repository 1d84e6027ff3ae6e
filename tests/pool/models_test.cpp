// What the pool does with several models: nobody finds another's blocks, and everybody may move,
// check and evict them.

#include <gmock/gmock.h>

#include "hashing/sequence_names.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/miss_report.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/care/repair.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A block has 4 tokens of the first model, and 6 of the second.
PoolGeometry two_models(std::uint32_t device_blocks = 9, std::uint32_t host_blocks = 8) {
  PoolGeometry geometry = small_geometry(device_blocks, host_blocks);
  geometry.model_count = 2;
  geometry.models[1] = geometry.models[0];
  geometry.models[1].tokens_per_block = 6;
  geometry.models[1].groups.first = 1;
  geometry.models[1].fingerprint = 0x5678;
  return geometry;
}

/// As Prompt, for the second model: its group's names.
struct OfSecond {
  OfSecond(const BlockPool& pool, std::vector<TokenId> all)
      : tokens(std::move(all)), names(pool.groups(), DomainId{}, pool.tokens_per_block()) {
    names.extend(pool.hasher(), tokens);
  }
  static constexpr GroupId kGroup{1};
  Prefix root() const { return BlockPool::root({}, kGroup); }

  std::vector<TokenId> tokens;
  SequenceNames names;
};

class TwoModels : public ::testing::Test {
 protected:
  TwoModels() {
    for (const std::uint32_t slot : {0u, 1u}) sign_in(memory_, ProcessSlot{slot}, slot);
  }
  void TearDown() override { EXPECT_THAT(fsck(memory_).violations, IsEmpty()); }

  /// Publishes the prompt's blocks for the second model, and leaves them idle.
  std::vector<BlockId> publish(const OfSecond& prompt) {
    const auto blocks = second_.allocate(Tier::device, prompt.names.blocks()).value();
    second_.publish(prompt.root(), blocks, prompt.names.names(OfSecond::kGroup), prompt.tokens);
    second_.release(blocks);
    return blocks;
  }
  std::size_t found(const OfSecond& prompt, Tier tier) {
    const PrefixHit hit =
        second_.match(tier, prompt.root(), prompt.names.names(OfSecond::kGroup), prompt.tokens);
    second_.cancel(hit);
    return hit.blocks.size();
  }

  PoolMemory memory_ = private_pool(two_models());
  BlockPool first_{memory_, ProcessSlot{0}};
  BlockPool second_{memory_, ProcessSlot{1}, Scrub::on_domain_change, {}, ModelId{1}};
};

TEST_F(TwoModels, HaveTheirOwnTokensPerBlockAndGroups) {
  EXPECT_EQ(first_.tokens_per_block(), 4u);
  EXPECT_EQ(second_.tokens_per_block(), 6u);
  EXPECT_EQ(memory_.geometry().group_count(), 2u);
  EXPECT_EQ(memory_.geometry().model_of(GroupId{1}), ModelId{1});
  EXPECT_EQ(memory_.geometry().model_of(GroupId{7}), ModelId{0}) << "there is no such group";
}

TEST_F(TwoModels, DoNotFindEachOthersBlocks) {
  leave_idle(first_, Prompt(first_, counting(10, 13)));
  const OfSecond same(second_, counting(10, 12));
  EXPECT_EQ(found(same, Tier::device), 0u);
  publish(same);
  EXPECT_EQ(found(same, Tier::device), 2u);
  const PrefixHit hit = match_all(first_, Prompt(first_, counting(10, 12)));
  EXPECT_THAT(hit.blocks, SizeIs(3));
  first_.cancel(hit);
}

TEST_F(TwoModels, AnEngineMovesTheOthersContentWithAllItsTokens) {
  const OfSecond prompt(second_, counting(10, 48));
  publish(prompt);  // all eight blocks of the device tier
  std::vector<Evicted> evicted;
  const auto taken = first_.allocate(Tier::device, 5, {}, &evicted).value();
  ASSERT_THAT(evicted, SizeIs(5));
  first_.finish_demotion(first_.demote(evicted));
  first_.release(taken);
  EXPECT_EQ(found(prompt, Tier::device), 3u);
  const PrefixHit device = second_.match(Tier::device, prompt.root(),
                                         prompt.names.names(OfSecond::kGroup), prompt.tokens);
  const auto rest = prompt.names.names(OfSecond::kGroup).subspan(3);
  const PrefixHit host =
      second_.match(Tier::host, device.end, rest, std::span(prompt.tokens).subspan(18));
  EXPECT_THAT(host.blocks, SizeIs(5));
  second_.cancel(device);
  second_.cancel(host);
  EXPECT_GT(fsck(memory_).bytes_checked, 0u);
}

TEST_F(TwoModels, DamageIsFoundByTheModelsOwnTokens) {
  const auto blocks = publish(OfSecond(second_, counting(10, 12)));
  memory_.token_row(blocks[1])[2].fetch_xor(1);  // tokens 4 and 5, which the first model lacks
  EXPECT_THAT(fsck(memory_).violations,
              ::testing::Contains(HasSubstr("does not hash to its name")));
  SlotOwners owners{};
  owners[0].use = owners[1].use = SlotOwner::Use::used;
  EXPECT_EQ(repair(memory_, owners).retired, 1u);
}

TEST_F(TwoModels, AMissIsExplainedForItsModel) {
  publish(OfSecond(second_, counting(10, 12)));
  const auto tokens = counting(10, 13);
  EXPECT_EQ(explain_miss(memory_, {}, tokens, {}, {}, ModelId{1}).computed_from, 2u);
  const MissReport of_first = explain_miss(memory_, {}, tokens);
  EXPECT_EQ(of_first.computed_from, 0u);
  EXPECT_EQ(of_first.blocks[0].status, CacheStatus::never_seen);
}

TEST_F(TwoModels, AreCountedApart) {
  leave_idle(first_, Prompt(first_, counting(10, 13)));
  publish(OfSecond(second_, counting(10, 12)));
  const PoolReport report = report_pool(memory_);
  EXPECT_EQ(report.models[0][0].idle, 3u);
  EXPECT_EQ(report.models[1][0].idle, 2u);
}

TEST(TwoModelsOfAGeometry, AreChecked) {
  const auto refused = [](auto change) {
    PoolGeometry geometry = two_models();
    change(geometry);
    const auto made = create_pool_objects(geometry);
    return made ? std::string() : made.error().text;
  };
  EXPECT_EQ(refused([](PoolGeometry&) {}), "");
  EXPECT_THAT(refused([](PoolGeometry& g) { g.model_count = 0; }), HasSubstr("1 to 8 models"));
  EXPECT_THAT(refused([](PoolGeometry& g) { g.model_count = 9; }), HasSubstr("got 9"));
  EXPECT_THAT(refused([](PoolGeometry& g) { g.models[1].groups.first = 0; }),
              HasSubstr("first cache group is 0"));
  EXPECT_THAT(refused([](PoolGeometry& g) { g.models[1].kv.padding = 8; }),
              HasSubstr("all blocks of a pool are equal"));
  EXPECT_THAT(refused([](PoolGeometry& g) { g.models[1].tokens_per_block = 1025; }),
              HasSubstr("got 1025"));
  EXPECT_THAT(refused([](PoolGeometry& g) {
                g.model_minimums = {4, 5};
              }),
              HasSubstr("are sure of 9 blocks, the device tier has 8"));
  EXPECT_THAT(refused([](PoolGeometry& g) {
                g.model_minimums = {0, 0, 1};
              }),
              HasSubstr("a model that does not exist"));
  EXPECT_THAT(refused([](PoolGeometry& g) {
                g.model_minimums = {1};
                g.limits[1] = {.min = 1};
              }),
              HasSubstr("a pool counts by one of them"));
}

TEST(TwoModelsOfAGeometry, AreComparedAtAttach) {
  PoolGeometry other = two_models();
  other.models[1].fingerprint ^= 1;
  EXPECT_NE(layout_hash(other), layout_hash(two_models()));
  EXPECT_NE(layout_hash(small_geometry(9, 8)), layout_hash(two_models()));
}

}  // namespace
}  // namespace kvhive::testing
