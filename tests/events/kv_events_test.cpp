// Events as vLLM writes them. `make beside-vllm-events` decodes them with vLLM's own classes.

#include "tools/events/kv_events.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "hashing/cache_salt.hpp"

namespace kvhive::testing {
namespace {

using Json = nlohmann::json;
using ::testing::SizeIs;

const PoolNames kNames({"default", "team"}, {"poet", "lawyer"});

Hash128 name_of(std::uint64_t number) {
  return {.low = number, .high = 0x1111111111111111 * number};
}

StoredContent block_of(std::uint64_t number, std::uint64_t parent = 0) {
  StoredContent block;
  block.name = name_of(number);
  if (parent != 0) block.parent = name_of(parent);
  const auto token = static_cast<TokenId>(10 * number);
  block.tokens = {token, token + 1};
  return block;
}

std::vector<Json> decoded(const std::vector<std::string>& batches) {
  std::vector<Json> all;
  for (const std::string& batch : batches) all.push_back(Json::from_msgpack(batch));
  return all;
}

Json one_batch(const ContentChange& change, EventFormat format = {}, bool clears = false) {
  const auto batches = decoded(EventWriter(format, 2).batches(change, kNames, 12.5, clears));
  EXPECT_THAT(batches, SizeIs(1));
  return batches.at(0);
}

TEST(KvEvents, ABatchHasTimeEventsAndRank) {
  const Json batch = one_batch({{block_of(1)}, {}});
  ASSERT_THAT(batch, SizeIs(3));
  EXPECT_EQ(batch[0], 12.5);
  EXPECT_EQ(batch[2], nullptr);
  const Json expected = {
      {"type", "BlockStored"}, {"block_hashes", {1}}, {"parent_block_hash", nullptr},
      {"token_ids", {10, 11}}, {"block_size", 2},     {"lora_id", nullptr},
      {"medium", "GPU"},       {"lora_name", nullptr}};
  EXPECT_EQ(batch[1], Json::array({expected}));
}

TEST(KvEvents, ArraysHaveTheOrderOfVllmsFields) {
  const Json batch = one_batch({{block_of(2, 1)}, {{name_of(3), Tier::host, {}}}},
                               {.events = EventForm::arrays}, true);
  EXPECT_EQ(batch[1], Json::parse(R"([["AllBlocksCleared"],
      ["BlockStored", [2], 1, [20, 21], 2, null, "GPU", null, null], ["BlockRemoved", [3], "CPU"]])"));
}

TEST(KvEvents, NamesMayBeBytes) {
  const Json batch = one_batch({{block_of(2, 1)}, {}}, {.hashes = HashForm::bytes});
  const Json event = batch[1][0];
  const std::vector<std::uint8_t> bytes = event["block_hashes"][0].get_binary();
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0, 0,
                                              0, 0, 0, 0, 0, 2}));
  EXPECT_TRUE(event["parent_block_hash"].is_binary());
}

TEST(KvEvents, ASequenceIsOneEventAndABranchAnother) {
  // 1 - 2 - 3, and 4 behind 1.
  const Json events =
      one_batch({{block_of(1), block_of(2, 1), block_of(4, 1), block_of(3, 2)}, {}})[1];
  ASSERT_THAT(events, SizeIs(2));
  Json all = Json::array();
  for (const Json& event : events) {
    EXPECT_EQ(event["token_ids"].size(), 2 * event["block_hashes"].size());
    all.insert(all.end(), event["block_hashes"].begin(), event["block_hashes"].end());
  }
  EXPECT_THAT(all, SizeIs(4));
  const Json first = events[0], second = events[1];
  EXPECT_EQ(first["parent_block_hash"], nullptr);
  EXPECT_NE(second["parent_block_hash"], nullptr);
}

TEST(KvEvents, StoredComesBeforeRemoved) {
  StoredContent demoted = block_of(1);
  demoted.tier = Tier::host;
  const Json events = one_batch({{demoted}, {{name_of(1), Tier::device, {}}}})[1];
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0]["type"], "BlockStored");
  EXPECT_EQ(events[0]["medium"], "CPU");
  EXPECT_EQ(events[1]["type"], "BlockRemoved");
  EXPECT_EQ(events[1]["medium"], "GPU");
}

TEST(KvEvents, TheFirstBlockNamesItsDomainAndAnyBlockItsExtraKey) {
  StoredContent first = block_of(1), second = block_of(2, 1), third = block_of(3, 2);
  first.domain = second.domain = third.domain = DomainId{1};
  second.extra = {0x0102030405060708, 9};
  const Json event = one_batch({{first, second, third}, {}})[1][0];
  const Json keys = event["extra_keys"];
  ASSERT_THAT(keys, SizeIs(3));
  EXPECT_EQ(keys[0], Json::array({"team"}));
  const std::vector<std::uint8_t> extra = keys[1][0].get_binary();
  EXPECT_EQ(extra, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9}));
  EXPECT_EQ(keys[2], nullptr);
  StoredContent unnamed = block_of(4);
  unnamed.domain = DomainId{7};
  EXPECT_EQ(one_batch({{unnamed}, {}})[1][0]["extra_keys"][0], Json::array({"7"}))
      << "a domain whose name is not known yet";
}

/// As vLLM's: each block of an adapter names it. What follows from a digest of a salt, too, is not
/// known.
TEST(KvEvents, BlocksOfAnAdapterNameItUnlessASaltHidesIt) {
  StoredContent first = block_of(1), second = block_of(2, 1), salted = block_of(3);
  first.extra = first.start = second.start = start_key("", "lawyer");
  salted.extra = salted.start = start_key("salt", "lawyer");
  const ContentChange change{{first, second, salted}, {}};
  const Json events = one_batch(change)[1];
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0]["lora_name"], "lawyer");
  EXPECT_EQ(events[0]["extra_keys"], Json::parse(R"([["lawyer"], ["lawyer"]])"));
  EXPECT_EQ(events[1]["lora_name"], nullptr);
  EXPECT_EQ(events[1]["extra_keys"][0][0].get_binary().size(), 16u);
  const Json array = one_batch(change, {.events = EventForm::arrays})[1][0];
  EXPECT_EQ(array[7], "lawyer");
}

/// Names and order of vLLM's fields: group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window.
TEST(KvEvents, EventsOfAPoolWithGroupsNameThem) {
  CacheGroups groups;
  groups.count = 2;
  groups.group[1] = {CacheKind::sliding_window, 128};
  StoredContent full = block_of(1), windowed = block_of(2);
  windowed.group = GroupId{1};
  const ContentChange change{
      {full, windowed},
      {{name_of(3), Tier::device, GroupId{1}}, {name_of(4), Tier::device, GroupId{0}}}};
  const Json events = decoded(EventWriter({}, 2, groups).batches(change, kNames, 1, false))[0][1];
  ASSERT_THAT(events, SizeIs(4)) << "blocks of two groups are in no event together";
  EXPECT_EQ(events[0]["group_idx"], 0);
  EXPECT_EQ(events[0]["kv_cache_spec_kind"], "full_attention");
  EXPECT_FALSE(events[0].contains("kv_cache_spec_sliding_window"));
  EXPECT_EQ(events[1]["group_idx"], 1);
  EXPECT_EQ(events[1]["kv_cache_spec_kind"], "sliding_window");
  EXPECT_EQ(events[1]["kv_cache_spec_sliding_window"], 128);
  EXPECT_EQ(events[2]["group_idx"], 1);
  EXPECT_EQ(events[3]["group_idx"], 0);
  const Json arrays = decoded(EventWriter({.events = EventForm::arrays}, 2, groups)
                                  .batches(change, kNames, 1, false))[0][1];
  EXPECT_EQ(arrays[1], Json::parse(R"(["BlockStored", [2], null, [20, 21], 2, null, "GPU", null,
                                       null, 1, "sliding_window", 128])"));
  EXPECT_EQ(arrays[2], Json::parse(R"(["BlockRemoved", [3], "GPU", 1])"));
}

TEST(KvEvents, NoBatchIsLong) {
  ContentChange change;
  for (std::uint64_t i = 1; i <= 1000; ++i) change.stored.push_back(block_of(i, i - 1));
  for (std::uint64_t i = 2000; i < 3000; ++i)
    change.removed.push_back({name_of(i), Tier::device, {}});
  const auto batches = decoded(EventWriter({}, 2).batches(change, kNames, 1, true));
  std::size_t stored = 0, removed = 0;
  for (const Json& batch : batches) {
    std::size_t here = 0;
    for (const Json& event : batch[1]) {
      if (event["type"] == "AllBlocksCleared") continue;
      const std::size_t blocks = event["block_hashes"].size();
      (event["type"] == "BlockStored" ? stored : removed) += blocks;
      here += blocks;
    }
    EXPECT_LE(here, kMostBlocksInBatch);
  }
  EXPECT_EQ(stored, 1000u);
  EXPECT_EQ(removed, 1000u);
  EXPECT_EQ(batches.size(), 8u) << "batches are full";
  const Json first = batches[0][1][0];
  EXPECT_EQ(first["type"], "AllBlocksCleared");
  const Json next = batches[1][1][0];
  EXPECT_EQ(next["parent_block_hash"], 256) << "a cut sequence goes on where it was cut";
}

TEST(KvEvents, NothingIsNoBatch) {
  EXPECT_TRUE(EventWriter({}, 2).batches({}, kNames, 1, false).empty());
  EXPECT_EQ(one_batch({}, {}, true)[1][0]["type"], "AllBlocksCleared");
}

}  // namespace
}  // namespace kvhive::testing
