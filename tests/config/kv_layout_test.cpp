#include "config/kv_layout.hpp"

#include <gtest/gtest.h>

namespace kvhive {
namespace {

TEST(KvLayout, HasVllmsPageSize) {  // AttentionSpec.page_size_bytes: 2 * S * G * D * bytes
  const KvLayout llama{
      .layers = 32, .kv_heads = 8, .head_size = 128, .block_size = 16, .dtype = Dtype::bf16};
  EXPECT_EQ(llama.plane_bytes(), 16u * 8 * 128 * 2);
  EXPECT_EQ(llama.layer_bytes(), 65536u);
  EXPECT_EQ(llama.block_bytes(), 2u << 20);
}

TEST(KvLayout, FloatTakesTwiceTheBytesOfHalf) {
  KvLayout layout{.layers = 2, .kv_heads = 3, .head_size = 5, .block_size = 7, .dtype = Dtype::f16};
  const std::size_t narrow = layout.block_bytes();
  layout.dtype = Dtype::f32;
  EXPECT_EQ(layout.block_bytes(), 2 * narrow);
}

TEST(KvLayout, Int8HasAScalePerTokenAndHead) {
  KvLayout layout{
      .layers = 2, .kv_heads = 3, .head_size = 64, .block_size = 16, .dtype = Dtype::e4m3};
  EXPECT_EQ(layout.layer_bytes(), 2u * 3 * 64 * 16);
  layout.dtype = Dtype::int8;
  EXPECT_EQ(layout.layer_bytes(), 2u * 3 * 64 * 16 + 2 * 3 * 16 * 4);
}

TEST(KvLayout, LatentRowsHaveVllmsPageSize) {  // MLAAttentionSpec.page_size_bytes
  KvLayout layout{.layers = 27,
                  .kv_heads = 1,
                  .head_size = 576,
                  .block_size = 64,
                  .dtype = Dtype::bf16,
                  .kind = KvKind::latent};
  EXPECT_EQ(layout.layer_bytes(), 64u * 576 * 2);
  EXPECT_EQ(layout.block_bytes(), 27u * 64 * 1152);
  layout.dtype = Dtype::e4m3;
  EXPECT_EQ(layout.layer_bytes(), 64u * 656) << "fp8_ds_mla";
}

TEST(KvLayout, DoesNotOverflow32Bits) {
  const KvLayout huge{
      .layers = 128, .kv_heads = 128, .head_size = 512, .block_size = 1024, .dtype = Dtype::f32};
  EXPECT_EQ(huge.block_bytes(), std::size_t{128} * 2 * 128 * 512 * 1024 * 4);
}

TEST(KvLayout, EmptyLayoutHasNoBytes) { EXPECT_EQ(KvLayout{}.block_bytes(), 0u); }

}  // namespace
}  // namespace kvhive
