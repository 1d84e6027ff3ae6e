#include "models/layer_groups.hpp"

#include <gtest/gtest.h>

#include <set>

#include "models/transformer.hpp"
#include "tests/models/golden.hpp"
#include "tests/models/paged_runner.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

/// Layers with these windows, 0 = full attention.
ModelConfig model_with(std::int32_t window, std::int32_t first_sliding, std::int32_t layers) {
  ModelConfig config;
  config.layers = layers;
  config.kv_heads = 2;
  config.head_size = 8;
  config.max_position_embeddings = 1000;
  config.sliding_window = window;
  for (std::int32_t layer = 0; layer < layers; ++layer)
    config.sliding_layers.push_back(window != 0 && layer >= first_sliding);
  return config;
}

constexpr CacheGroup kFull{};
constexpr CacheGroup window(std::uint32_t span) { return {CacheKind::sliding_window, span}; }

TEST(LayerGroups, FullAttentionIsOneGroup) {
  const LayerGroups groups = group_layers(model_with(0, 0, 5));
  EXPECT_TRUE(groups.groups.is_one_full());
  EXPECT_EQ(groups.layers, 5u);
  EXPECT_EQ(groups.places, one_group(model_with(0, 0, 5)).places);
}

TEST(LayerGroups, OneWindowIsOneGroup) {
  const LayerGroups groups = group_layers(model_with(64, 0, 5));
  ASSERT_EQ(groups.groups.count, 1u);
  EXPECT_EQ(groups.groups.group[0], window(64));
  EXPECT_EQ(groups.places, one_group(model_with(64, 0, 5)).places);
}

TEST(LayerGroups, AWindowThatNoSequenceOutgrowsIsNone) {
  EXPECT_TRUE(group_layers(model_with(1000, 0, 5)).groups.is_one_full());
  EXPECT_FALSE(group_layers(model_with(999, 0, 5)).groups.is_one_full());
}

/// As vLLM: 2 layers of the one and 4 of the other kind make groups of 2, layers dealt out in turn.
TEST(LayerGroups, GroupsHaveAsManyLayersAsTheRarestWindow) {
  const LayerGroups groups = group_layers(model_with(64, 2, 6));
  ASSERT_EQ(groups.groups.count, 3u);
  EXPECT_EQ(groups.layers, 2u);
  EXPECT_EQ(groups.groups.group[0], kFull);
  EXPECT_EQ(groups.groups.group[1], window(64));
  EXPECT_EQ(groups.groups.group[2], window(64));
  const std::vector<LayerPlace> places{{GroupId{0}, 0}, {GroupId{0}, 1}, {GroupId{1}, 0},
                                       {GroupId{2}, 0}, {GroupId{1}, 1}, {GroupId{2}, 1}};
  EXPECT_EQ(groups.places, places);
}

/// As vLLM: with 8 and 9 layers, groups of 9; one place stays empty.
TEST(LayerGroups, KindsOfAboutEqualSizeArePadded) {
  const LayerGroups groups = group_layers(model_with(64, 8, 17));
  ASSERT_EQ(groups.groups.count, 2u);
  EXPECT_EQ(groups.layers, 9u);
}

TEST(LayerGroups, NoMoreGroupsThanAPoolMayHave) {
  const LayerGroups groups = group_layers(model_with(64, 1, 60));
  EXPECT_LE(groups.groups.count, kMostGroups);
  EXPECT_EQ(groups.groups.count, 16u);
  std::set<std::pair<std::uint8_t, std::int32_t>> seen;
  for (const LayerPlace& place : groups.places) {
    EXPECT_LT(place.slot, std::int32_t(groups.layers));
    EXPECT_TRUE(seen.insert({place.group.value, place.slot}).second);
  }
}

TEST(LayerGroups, ALayoutSaysWhichOfTheTwo) {
  const ModelConfig config = model_with(64, 2, 6);
  for (const LayerGroups& groups : {one_group(config), group_layers(config)}) {
    const KvLayout layout = kv_layout(config, groups, 16, Dtype::bf16);
    EXPECT_EQ(layout.layers, groups.layers);
    EXPECT_EQ(groups_of(config, layout).places, groups.places);
  }
}

TEST(LayerGroups, LayersWithChunksAreGroupsOfTheirOwn) {
  const ModelConfig config = load_model_config(kGolden / "llama4").value();  // layer 1 sees all
  const LayerGroups groups = group_layers(config);
  ASSERT_EQ(groups.groups.count, 3u);
  EXPECT_EQ(groups.groups.group[0], (CacheGroup{CacheKind::chunked_local, 16}));
  EXPECT_EQ(groups.groups.group[1], groups.groups.group[0]);
  EXPECT_EQ(groups.groups.group[2], kFull);
  ModelConfig short_one = config;
  short_one.max_position_embeddings = 16;
  EXPECT_TRUE(group_layers(short_one).groups.is_one_full());
}

TEST(LayerGroups, ALongSequenceInChunksHoldsFewBlocks) {
  auto model = Transformer::load(kGolden / "llama4").value();
  const auto golden = read_golden("llama4");
  LayerGroups groups = group_layers(model.config());
  PagedRunner chunked(model, Dtype::f32, 4, 64 * groups.groups.count, 1, groups);
  PagedRunner whole(model, Dtype::f32, 4, 64, 1);
  EXPECT_EQ(chunked.run_chunked(0, golden.tokens, {1}), whole.run_chunked(0, golden.tokens, {1}));
  EXPECT_EQ(whole.most_held(), 12u);
  EXPECT_EQ(chunked.most_held(), 12u + 2 * 4) << "four blocks are a chunk";
}

TEST(LayerGroups, ALongSequenceInAWindowHoldsFewBlocks) {
  auto model = Transformer::load(kGolden / "mistral").value();  // a window of 11 tokens
  const auto golden = read_golden("mistral");
  PagedRunner windowed(model, Dtype::f32, 4, 64, 1, group_layers(model.config()));
  PagedRunner whole(model, Dtype::f32, 4, 64, 1);
  EXPECT_EQ(windowed.run_chunked(0, golden.tokens, {1}), whole.run_chunked(0, golden.tokens, {1}));
  EXPECT_EQ(windowed.most_held(), 4u);  // of the window, and the one that is written
  EXPECT_GT(whole.most_held(), 8u);
}

}  // namespace
}  // namespace kvhive
