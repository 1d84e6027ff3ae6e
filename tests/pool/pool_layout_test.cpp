#include "pool/pool_layout.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

TEST(PoolLayout, TablesFollowEachOtherWithoutOverlap) {
  PoolGeometry with_lives = small_geometry(4160, 64, 1);
  with_lives.life_stride = 100;
  for (const auto& geometry : {small_geometry(2), small_geometry(11, 3), small_geometry(100'000, 7),
                               small_geometry(64, 4097, 16), with_lives}) {
    const PoolLayout layout(geometry);
    std::size_t end = std::size_t{geometry.total_blocks()} * sizeof(BlockDescriptor);
    const auto next = [&end](std::size_t offset, std::size_t bytes) {
      EXPECT_GE(offset, end);
      EXPECT_EQ(offset % 64, 0u);
      end = offset + bytes;
    };
    next(layout.index_offset, layout.index_buckets * sizeof(IndexBucket));
    for (const auto& tier : layout.tiers) {
      next(tier.bitmap_offset, tier.bitmap_words * 8);
      next(tier.summary_offset, tier.summary_words * 8);
      next(tier.ring_offset, tier.ring_slots * 4);
      EXPECT_GE(tier.bitmap_words * 64, tier.blocks);
      EXPECT_GE(tier.bitmap_groups * tier.kGroupWords, tier.bitmap_words);
      EXPECT_GE(tier.summary_words * 64, tier.bitmap_groups);
      EXPECT_GE(tier.ring_slots, 4 * std::size_t{tier.blocks});
      EXPECT_TRUE(std::has_single_bit(tier.ring_slots));
    }
    next(layout.journal_offset, layout.journal_slots * sizeof(JournalRecord));
    const std::size_t stride = geometry.life_stride;
    next(layout.lives_offset,
         stride == 0 ? 0 : (geometry.device_blocks + stride - 1) / stride * sizeof(LifeRecord));
    EXPECT_TRUE(std::has_single_bit(layout.journal_slots));
    EXPECT_LE(layout.journal_slots, kMostJournalRecords);
    EXPECT_GE(layout.metadata_bytes, end);
    EXPECT_TRUE(std::has_single_bit(layout.index_buckets));
    EXPECT_LE(geometry.total_blocks(), 2 * layout.index_buckets);
  }
}

TEST(PoolLayout, HostBlocksFollowDeviceBlocks) {
  const PoolLayout layout(small_geometry(11, 3));
  EXPECT_EQ(layout.tiers[0].first_block, 0u);
  EXPECT_EQ(layout.tiers[0].blocks, 11u);
  EXPECT_EQ(layout.tiers[1].first_block, 11u);
  EXPECT_EQ(layout.tiers[1].blocks, 3u);
}

/// Or a damaged copy of the header goes unnoticed until the header itself is damaged, and cannot
/// mend it then.
TEST(PoolLayout, EveryBitOfAGeometryIsInTheHeadersChecksum) {
  PoolHeader header{};
  header.geometry = small_geometry(11, 3);
  const PoolGeometry sound = header.geometry;
  const std::uint64_t checksum = checksum_of(header);
  auto* bytes = reinterpret_cast<unsigned char*>(&header.geometry);
  std::size_t noticed = 0;
  for (std::size_t bit = 0; bit < sizeof header.geometry * 8; ++bit) {
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
    const bool matters = !(header.geometry == sound);
    if (matters) {
      EXPECT_NE(checksum_of(header), checksum) << "byte " << bit / 8 << ", bit " << bit % 8;
    }
    noticed += matters;
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ 1u << bit % 8);
  }
  EXPECT_GT(noticed, sizeof header.geometry * 4) << "the rest is padding";
}

TEST(PoolLayout, OddBlockSizesPadTheTokenRow) {
  EXPECT_EQ(PoolLayout(small_geometry(4, 0, 1)).row_words, 1u);
  EXPECT_EQ(PoolLayout(small_geometry(4, 0, 16)).row_words, 8u);
  EXPECT_EQ(PoolLayout(small_geometry(4, 0, 17)).row_words, 9u);
}

TEST(PoolLayout, PoolWithoutPayloadHasNoArenas) {
  PoolGeometry geometry = small_geometry(4, 4);
  geometry.models[0].kv = {};
  const PoolLayout layout(geometry);
  EXPECT_EQ(layout.device_bytes, 0u);
  EXPECT_EQ(layout.host_bytes, 0u);
}

TEST(LayoutHash, DiffersWithEveryFieldOfTheGeometry) {
  const PoolGeometry base = small_geometry(16, 4);
  std::set<std::uint32_t> seen{layout_hash(base)};
  const auto with = [&](auto change) {
    PoolGeometry other = base;
    change(other);
    EXPECT_TRUE(seen.insert(layout_hash(other)).second);
  };
  with([](PoolGeometry& g) { ++g.device_blocks; });
  with([](PoolGeometry& g) { ++g.host_blocks; });
  with([](PoolGeometry& g) { ++g.models[0].tokens_per_block; });
  with([](PoolGeometry& g) { ++g.models[0].kv.layers; });
  with([](PoolGeometry& g) { ++g.models[0].kv.kv_heads; });
  with([](PoolGeometry& g) { ++g.models[0].kv.head_size; });
  with([](PoolGeometry& g) { g.models[0].kv.kind = KvKind::latent; });
  with([](PoolGeometry& g) { ++g.models[0].kv.block_size; });
  with([](PoolGeometry& g) { g.models[0].kv.dtype = Dtype::f16; });
  with([](PoolGeometry& g) { ++g.models[0].fingerprint; });
  with([](PoolGeometry& g) { g.models[0].fingerprint ^= 1ull << 63; });
  EXPECT_EQ(layout_hash(base), layout_hash(small_geometry(16, 4)));
}

}  // namespace
}  // namespace kvhive::testing
