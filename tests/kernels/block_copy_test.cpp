#include "kernels/block_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "backends.hpp"
#include "kernels/copy_way.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

class BlockCopy : public testing::TestWithParam<Backend> {};

constexpr std::size_t kBlocks = 6;
constexpr std::size_t kGuard = 128;

/// kBlocks blocks and guards on both sides, full of noise. `misalignment` shifts block 0 from a
/// cache line's start.
struct Arena {
  Arena(std::size_t block_bytes, std::size_t misalignment, std::uint32_t seed)
      : bytes(kBlocks * block_bytes + 2 * kGuard + 64) {
    std::mt19937 random(seed);
    std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random()); });
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    first = kGuard + (64 - address % 64) % 64 + misalignment % 64;
  }

  std::vector<std::byte> bytes;
  std::size_t first;  ///< offset of block 0
};

TEST_P(BlockCopy, CopiesTheNamedBlocksAndTouchesNothingElse) {
  const std::vector<BlockPair> pairs{{5, 0}, {2, 4}, {5, 3}};
  for (const std::size_t block_bytes :
       {1u, 100u, 4096u, 16384u, 16384u + 64u, 65536u + 100u, 3u * 65536u, 524288u})
    for (const std::size_t misalignment : {0u, 16u, 1u}) {
      const Arena source(block_bytes, 0, 1);
      Arena destination(block_bytes, misalignment, 2);
      std::vector<std::byte> expected = destination.bytes;
      for (const BlockPair pair : pairs)
        std::copy_n(source.bytes.begin() + source.first + pair.source * block_bytes, block_bytes,
                    expected.begin() + destination.first + pair.destination * block_bytes);
      GetParam().copy(whole_blocks(source.bytes.data() + source.first,
                                   destination.bytes.data() + destination.first, block_bytes,
                                   pairs));
      EXPECT_TRUE(destination.bytes == expected) << block_bytes << " bytes, +" << misalignment;
    }
}

TEST_P(BlockCopy, CopiesInsideOneArena) {
  const std::size_t block_bytes = 65536;
  Arena arena(block_bytes, 0, 1);
  std::vector<std::byte> expected = arena.bytes;
  const std::vector<BlockPair> pairs{{0, 3}, {1, 5}};
  for (const BlockPair pair : pairs)
    std::copy_n(expected.begin() + arena.first + pair.source * block_bytes, block_bytes,
                expected.begin() + arena.first + pair.destination * block_bytes);
  std::byte* blocks = arena.bytes.data() + arena.first;
  GetParam().copy(whole_blocks(blocks, blocks, block_bytes, pairs));
  EXPECT_TRUE(arena.bytes == expected);
}

TEST_P(BlockCopy, CopiesTheSameBytesInEveryWay) {
  const std::vector<BlockPair> pairs{{5, 0}, {2, 4}, {0, 3}, {1, 1}};
  for (const CopyWay way : {CopyWay::one_run, CopyWay::four_pages}) {
    force_copy_way(way);
    for (const std::size_t kib : {16, 20, 32, 36, 48, 60, 100, 512}) {
      // The last block's end is not a whole line.
      const std::size_t block_bytes = kib * 1024 + 64, copied_bytes = block_bytes - 24;
      const Arena source(block_bytes, 0, 1);
      Arena destination(block_bytes, 0, 2);
      std::vector<std::byte> expected = destination.bytes;
      for (const BlockPair pair : pairs)
        std::copy_n(source.bytes.begin() + source.first + pair.source * block_bytes, copied_bytes,
                    expected.begin() + destination.first + pair.destination * block_bytes);
      BlockCopyArgs args =
          whole_blocks(source.bytes.data() + source.first,
                       destination.bytes.data() + destination.first, block_bytes, pairs);
      args.bytes = copied_bytes;
      GetParam().copy(args);
      EXPECT_TRUE(destination.bytes == expected) << kib << " KiB, way " << int(way);
    }
  }
  force_copy_way({});
}

TEST_P(BlockCopy, TakesNoPairs) { GetParam().copy(whole_blocks(nullptr, nullptr, 4096, {})); }

INSTANTIATE_TEST_SUITE_P(Backends, BlockCopy, testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
