#include "config/sizing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvhive {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

/// Llama-3-8B's shape: 2 (K and V) * 16 tokens * 8 heads * 128 * 2 bytes * 32 layers = 2 MiB.
constexpr KvLayout kLayout{
    .layers = 32, .kv_heads = 8, .head_size = 128, .block_size = 16, .dtype = Dtype::bf16};
constexpr std::uint32_t kPositions = 8192;

MemoryFigures large() { return {64 * kGiB, 60 * kGiB, 0, 0}; }

Expected<PoolSize> size(const Options& options, const MemoryFigures& memory = large(),
                        DeviceKind device = DeviceKind::cpu) {
  return size_pool(options, device, kLayout.block_bytes(), memory);
}

Expected<std::uint32_t> longest(const Options& options) {
  return longest_sequence(options, *size(options), kLayout, {}, kPositions);
}

TEST(Sizing, ABlockHoldsKAndVOfAllLayers) {
  EXPECT_EQ(kLayout.block_bytes(), 2 * kMiB);
  Options options;
  options.kv_cache_memory_bytes = 4 * kGiB;
  KvLayout layout = kLayout;
  EXPECT_EQ(size_pool(options, DeviceKind::cpu, layout.block_bytes(), large())->device_blocks,
            2048u);
  layout.layers = 16;
  EXPECT_EQ(size_pool(options, DeviceKind::cpu, layout.block_bytes(), large())->device_blocks,
            4096u);
  layout.dtype = Dtype::f32;
  EXPECT_EQ(size_pool(options, DeviceKind::cpu, layout.block_bytes(), large())->device_blocks,
            2048u);
}

TEST(Sizing, BytesThatMakeNoWholeBlockAreNotUsed) {
  Options options;
  options.kv_cache_memory_bytes = 4 * kGiB - 1;
  EXPECT_EQ(size(options)->device_blocks, 2047u);
}

TEST(Sizing, UtilizationMinusWeightsAndEnginesIsTheKvCache) {
  Options options;
  options.gpu_memory_utilization = 0.5;
  options.engines = 3;
  const MemoryFigures memory{32 * kGiB, 30 * kGiB, 4 * kGiB, 2 * kGiB};
  // 16 GiB - 4 GiB - 3 * 2 GiB = 6 GiB
  EXPECT_EQ(size(options, memory)->device_blocks, 3072u);
}

TEST(Sizing, WeightsAreInAGpusMemoryToo) {
  Options options;
  options.kv_cache_memory_bytes = 10 * kGiB;
  const MemoryFigures memory{64 * kGiB, 60 * kGiB, 51 * kGiB, 0, "the GPU"};
  EXPECT_TRUE(size(options, memory));
  const auto refused = size(options, memory, DeviceKind::cuda);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().text,
              HasSubstr("the pool needs 10.00 GiB and weights 51.00 GiB, the GPU has 60.00 GiB"));
}

/// GPU memory that other processes use does not count, and swap space is in host memory.
TEST(Sizing, UtilizationOfAGpuIsAShareOfItsFreeMemory) {
  Options options;
  options.gpu_memory_utilization = 0.5;
  options.engines = 3;
  options.swap_space = 64 * kGiB;
  const MemoryFigures memory{32 * kGiB, 30 * kGiB, 4 * kGiB, 2 * kGiB};
  // 15 GiB - 4 GiB - 3 * 2 GiB = 5 GiB
  EXPECT_EQ(size(options, memory, DeviceKind::cuda)->device_blocks, 2560u);
}

/// The default share is smaller on the CPU, because other programs use the machine's memory. On a
/// GPU it is a share of the free memory.
TEST(Sizing, TheDefaultUtilizationDependsOnTheDevice) {
  Options options;
  const MemoryFigures memory{40 * kGiB, 30 * kGiB, kGiB, kGiB};
  EXPECT_EQ(size(options, memory)->device_blocks, 14 * 512u);  // 40 * 0.4 - 1 - 1 GiB
  // 30 * 0.9 - 1 - 1 GiB
  EXPECT_EQ(size(options, memory, DeviceKind::cuda)->device_blocks, 25 * 512u);
  const auto refused = size(options, {40 * kGiB, 10 * kGiB, 20 * kGiB, kGiB}, DeviceKind::cuda);
  ASSERT_FALSE(refused.has_value());  // the error names the default share
  EXPECT_THAT(refused.error().text, HasSubstr("gpu-memory-utilization 0.9"));
}

TEST(Sizing, AKvCacheSizeIgnoresUtilization) {
  Options options;
  options.gpu_memory_utilization = 0.001;
  options.kv_cache_memory_bytes = kGiB;
  EXPECT_EQ(size(options, {64 * kGiB, 60 * kGiB, 30 * kGiB, kGiB})->device_blocks, 512u);
}

TEST(Sizing, AnOverrideTakesPrecedence) {
  Options options;
  options.num_gpu_blocks_override = 77;
  options.kv_cache_memory_bytes = kGiB;
  EXPECT_EQ(size(options)->device_blocks, 77u);
}

TEST(Sizing, OnlyUtilizationNeedsAProfileRun) {
  Options options;
  EXPECT_TRUE(needs_profile_run(options));
  options.kv_cache_memory_bytes = 1;
  EXPECT_FALSE(needs_profile_run(options));
  options.kv_cache_memory_bytes = 0;
  options.num_gpu_blocks_override = 2;
  EXPECT_FALSE(needs_profile_run(options));
}

TEST(Sizing, SwapSpaceIsTheHostTierOfTheWholePool) {
  Options options;
  options.engines = 4;
  options.num_gpu_blocks_override = 100;
  options.swap_space = 4 * kGiB + kMiB;
  const PoolSize pool = size(options).value();
  EXPECT_EQ(pool.host_blocks, 2048u);
  EXPECT_EQ(pool.device_blocks, 100u);
}

// -- too much, too little

TEST(Sizing, WeightsAndEnginesAboveTheShareAreAnErrorThatNamesThemAll) {
  Options options;
  options.gpu_memory_utilization = 0.25;
  options.engines = 2;
  const auto refused = size(options, {32 * kGiB, 30 * kGiB, 7 * kGiB, kGiB});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  for (const char* text : {"gpu-memory-utilization 0.25", "32.00 GiB", "7.00 GiB", "2 engines",
                           "1.00 GiB", "raise it", "fewer engines"})
    EXPECT_THAT(refused.error().text, HasSubstr(text));
}

TEST(Sizing, MoreThanIsAvailableIsAnErrorForBothTiersTogether) {
  Options options;
  options.kv_cache_memory_bytes = 40 * kGiB;
  EXPECT_TRUE(size(options).has_value());
  options.swap_space = 20 * kGiB;
  EXPECT_TRUE(size(options).has_value());
  options.swap_space = 20 * kGiB + 2 * kMiB;
  const auto refused = size(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  for (const char* text : {"needs 60.00 GiB", "the machine has 60.00 GiB available", "lower",
                           "kv-cache-memory-bytes", "num-gpu-blocks-override", "swap-space"})
    EXPECT_THAT(refused.error().text, HasSubstr(text));
}

TEST(Sizing, AHugeOverrideDoesNotOverflow) {
  Options options;
  options.num_gpu_blocks_override = 0xffffffff;
  EXPECT_EQ(size(options).error().code, Errc::out_of_memory);
}

TEST(Sizing, APoolWithoutAUsableBlockIsRefused) {
  Options options;
  options.kv_cache_memory_bytes = 3 * kMiB;
  const auto refused = size(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("1 device blocks of 2.00 MiB"));
  EXPECT_THAT(refused.error().text, HasSubstr("at least 2"));
}

// -- the longest request

TEST(Sizing, TheDefaultLengthIsTheModelsIfThePoolHoldsIt) {
  Options options;
  options.num_gpu_blocks_override = kPositions / 16 + 1;
  EXPECT_EQ(*longest(options), kPositions);
}

TEST(Sizing, ElseTheDefaultLengthIsThePoolsWithoutTheNullBlock) {
  Options options;
  options.num_gpu_blocks_override = 11;
  EXPECT_EQ(*longest(options), 160u);
}

TEST(Sizing, AGivenLengthIsKept) {
  Options options;
  options.num_gpu_blocks_override = 11;
  options.max_model_len = 160;
  EXPECT_EQ(*longest(options), 160u);
  options.max_model_len = 50;
  EXPECT_EQ(*longest(options), 50u);
}

TEST(Sizing, ALengthBeyondThePoolIsAnErrorThatSaysWhatFits) {
  Options options;
  options.num_gpu_blocks_override = 11;
  options.max_model_len = 161;
  const auto refused = longest(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::bad_argument);
  for (const char* text :
       {"max-model-len", "161 tokens needs 22.00 MiB", "has 20.00 MiB", "at most 160 tokens fit"})
    EXPECT_THAT(refused.error().text, HasSubstr(text));
}

TEST(Sizing, ALengthBeyondTheModelIsAnErrorThatNamesBoth) {
  Options options;
  options.num_gpu_blocks_override = 2000;
  options.max_model_len = kPositions + 1;
  const auto refused = longest(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("8193"));
  EXPECT_THAT(refused.error().text, HasSubstr("8192"));
}

// -- blocks of several models

TEST(Sizing, ABlockHasAsManyTokensOfASmallerModelAsFit) {
  KvLayout small = kLayout;
  small.layers = 10;
  const auto tokens_of = [](std::size_t bytes, const KvLayout& layout) {
    return tokens_in(bytes, layout, DeviceKind::cpu);
  };
  EXPECT_EQ(tokens_of(kLayout.block_bytes(), kLayout), 16u);
  EXPECT_EQ(tokens_of(kLayout.block_bytes(), small), 48u);  // 51 of them have room
  EXPECT_EQ(tokens_in(kLayout.block_bytes(), small, DeviceKind::cuda), 32u);
  small.layers = 1;
  small.kv_heads = 1;
  EXPECT_EQ(tokens_of(kLayout.block_bytes(), small), 1024u);
  EXPECT_EQ(tokens_of(1, kLayout), 16u);
  EXPECT_EQ(tokens_in(1, kLayout, DeviceKind::cuda), 16u);
}

TEST(Sizing, BlocksOfSeveralModelsArePaddedToTheSameBytes) {
  KvLayout large = kLayout, small = kLayout;
  small.layers = 10;
  small.block_size = 48;
  KvLayout* both[] = {&small, &large};
  equalize(both);
  EXPECT_EQ(large.padding, 0u);
  EXPECT_EQ(small.block_bytes(), large.block_bytes());
  KvLayout* one[] = {&(small = kLayout)};
  small.head_size = 3;  // alone it needs no padding
  equalize(one);
  EXPECT_EQ(small.padding, 0u);
}

}  // namespace
}  // namespace kvhive
