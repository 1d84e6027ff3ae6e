#include "tools/map/pool_map.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/map/sample_map.hpp"

namespace kvhive::testing {
namespace {

std::uint64_t total_of(const PoolMap& map, const std::string& name) {
  for (std::size_t i = 0; i < map.categories.size(); ++i)
    if (map.categories[i].name == name) return map.totals[i];
  ADD_FAILURE() << "the legend has no '" << name << "'";
  return 0;
}

TEST(PoolMap, ShowsEachStateByItsLetter) {
  const PoolMap map = map_of(".FHSIX?");
  EXPECT_EQ(letters_of(map), ".FHSIXX") << "a corrupt state counts as retired, as in pool stat";
  EXPECT_EQ(total_of(map, "retired"), 2u);
  EXPECT_EQ(total_of(map, "shared"), 1u);
}

TEST(PoolMap, TiersAreApartAndCountedFromTheirFirstBlock) {
  const PoolMap map = map_of("HH.", "II");
  ASSERT_EQ(map.tiers.size(), 2u);
  EXPECT_EQ(map.tiers[0].cells[0].first, 1u) << "the null block is left out";
  EXPECT_EQ(map.tiers[1].first, 4u);
  EXPECT_EQ(letters_of(map, 1), "II");
}

TEST(PoolMap, ACellOfSeveralBlocksCountsEachAndShowsMost) {
  const PoolMap map = map_of(
      "HHHH"
      "HHHI"
      "H..."
      "HHII"
      "F",
      "", 4);
  EXPECT_EQ(letters_of(map), "Hh,iF")
      << "all; most; most are free; of as many, the later in the legend; the last has one block";
  const MapCell& mixed = map.tiers[0].cells[1];
  EXPECT_EQ(mixed.first, 5u);
  EXPECT_EQ(std::accumulate(mixed.counts.begin(), mixed.counts.end(), 0u), 4u);
  EXPECT_EQ(mixed.counts[mixed.dominant()], 3u);
  EXPECT_EQ(map.tiers[0].cells[4].blocks, 1u);
  EXPECT_TRUE(map.has_mixed_cells());
  EXPECT_FALSE(map_of("HHHH", "", 4).has_mixed_cells());
}

TEST(PoolMap, HalfFreeShowsTheOtherHalf) { EXPECT_EQ(letters_of(map_of("..HH", "", 4)), "h"); }

TEST(PoolMap, CellsEndWithTheirTier) {
  const PoolMap map = map_of("HHHHH", "III", 4);
  EXPECT_EQ(letters_of(map, 0), "HH");
  EXPECT_EQ(letters_of(map, 1), "I");
  EXPECT_EQ(map.tiers[0].cells[1].blocks, 1u);
}

TEST(PoolMap, ByOwnerNamesTheEngineNotTheSlot) {
  const PoolMap map = map_of(".FHSIX", "", 1, MapBy::owner);
  EXPECT_EQ(letters_of(map), ".47+-X") << "slot 0, which fills, is engine 4; slot 1 is engine 7";
  EXPECT_EQ(total_of(map, "engine 7"), 1u);
  EXPECT_EQ(total_of(map, "held by several"), 1u);
}

TEST(PoolMap, AHolderThatIsNotAttachedIsAnEngineNotKnown) {
  BlockSorter sorter(geometry_of(1), MapBy::owner, {});
  sorter.add(block_of('H', 1, 1));
  EXPECT_EQ(letters_of(std::move(sorter).finish().map(1)), "?");
}

TEST(PoolMap, ByDomainOnlyContentHasOne) {
  BlockSorter sorter(geometry_of(4), MapBy::domain, sample_names());
  std::uint32_t id = 0;
  for (const auto& [state, domain] :
       std::vector<std::pair<char, std::uint16_t>>{{'H', 0}, {'I', 1}, {'F', 60}, {'.', 1}}) {
    BlockReport block = block_of(state, ++id, 4);
    block.domain = DomainId{domain};
    sorter.add(block);
  }
  const PoolMap map = std::move(sorter).finish().map(1);
  EXPECT_EQ(letters_of(map), "AB*.");
  EXPECT_EQ(total_of(map, "domain team"), 1u);
  EXPECT_EQ(total_of(map, "domain 60"), 1u) << "without a name, the number";
}

TEST(PoolMap, ByAgeTheLowestStampGoesFirst) {
  BlockSorter sorter(geometry_of(21), MapBy::age, {});
  for (std::uint32_t id = 1; id <= 20; ++id) {
    BlockReport block = block_of('I', id, 21);
    block.stamp = 1'000'000 - id * id;  // ranks count, not gaps
    sorter.add(block);
  }
  sorter.add(block_of('S', 21, 21));
  const PoolMap map = std::move(sorter).finish().map(1);
  EXPECT_EQ(letters_of(map), "99887766554433221100#");
  EXPECT_EQ(total_of(map, "idle, evicted next"), 2u);
  EXPECT_EQ(total_of(map, "in use"), 1u);
}

TEST(PoolMap, BySharingTheHoldersAreCounted) {
  BlockSorter sorter(geometry_of(5), MapBy::sharing, {});
  std::uint32_t id = 0;
  for (const std::uint32_t holders : {0b0u, 0b100u, 0b101u, 0b10101u, 0b111111u}) {
    BlockReport block = block_of('I', ++id, 5);
    block.word = BlockWord::make(BlockState::ready, 1, holders);
    sorter.add(block);
  }
  const PoolMap map = std::move(sorter).finish().map(1);
  EXPECT_EQ(letters_of(map), "-1234");
  EXPECT_EQ(total_of(map, "held by 4 or more engines"), 1u);
}

TEST(PoolMap, ByTierHeldAndCachedAreApart) {
  const PoolMap map = map_of("HSI.", "I.", 1, MapBy::tier);
  EXPECT_EQ(letters_of(map, 0) + letters_of(map, 1), "DDd.u.");
  EXPECT_EQ(total_of(map, "host, idle (cached)"), 1u);
  EXPECT_EQ(map_of("HSI.", "", 1, MapBy::tier).categories.size(), 3u)
      << "a tier that there is not is not in the legend";
}

TEST(PoolMap, EachTierHasAReleaseOrderOfItsOwn) {
  BlockSorter sorter(geometry_of(1, 1), MapBy::age, {});
  for (std::uint32_t id = 1; id <= 2; ++id) {
    BlockReport block = block_of('I', id, 1);
    block.stamp = 10 + id;
    sorter.add(block);
  }
  const PoolMap map = std::move(sorter).finish().map(1);
  EXPECT_EQ(letters_of(map, 0) + letters_of(map, 1), "00");
}

TEST(MapScale, IsTheLeastPowerOfTwoThatFits) {
  EXPECT_EQ(blocks_per_cell(geometry_of(1000), 64, 16), 1u);
  EXPECT_EQ(blocks_per_cell(geometry_of(1025), 64, 16), 2u);
  EXPECT_EQ(blocks_per_cell(geometry_of(1'000'000), 64, 16), 1024u);
  EXPECT_EQ(blocks_per_cell(geometry_of(1000, 30), 64, 16), 2u) << "a tier begins a row";
  EXPECT_EQ(blocks_per_cell(geometry_of(1000, 30), 64, 0), 16u) << "each tier has one row at least";
  EXPECT_EQ(blocks_per_cell(geometry_of(2), 0, 0), 2u) << "no room at all";
}

TEST(PoolMap, AMillionBlocksFitAndNoneIsLost) {
  constexpr std::uint32_t kBlocks = 1'000'000;
  BlockSorter sorter(geometry_of(kBlocks), MapBy::state, {});
  for (std::uint32_t id = 1; id <= kBlocks; ++id)
    sorter.add(block_of(id % 3 == 0 ? 'H' : 'I', id, kBlocks));
  const PoolMap map = std::move(sorter).finish().map(1024);
  EXPECT_EQ(map.tiers[0].cells.size(), 977u);
  EXPECT_EQ(letters_of(map).find_first_not_of('i'), std::string::npos);
  EXPECT_EQ(total_of(map, "held by one"), kBlocks / 3);
}

}  // namespace
}  // namespace kvhive::testing
