// Swap between two arenas, by the copy engines and by the kernel, copies the same bytes and no
// others.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kBlocks = 8;

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> all(bytes);
  std::generate(all.begin(), all.end(), [&] {
    seed = seed * 1664525 + 1013904223;
    return static_cast<std::byte>(seed >> 24);
  });
  return all;
}

TEST(SwapCuda, CopiesTheSameByBatchAndByKernel) {
  // Pairs that are neighbours in both arenas, in one only, in reverse, and alone.
  const std::vector<BlockPair> pairs{{2, 4}, {3, 5}, {4, 7}, {1, 6}, {0, 0}, {7, 1}, {6, 2}};
  struct Strides {
    std::size_t source, destination;
  };
  for (const std::size_t bytes : {16u, 100u, 4096u, 40000u})
    for (const Strides gaps : {Strides{0, 0}, {48, 0}, {0, 16}, {32, 80}})
      for (const bool is_batched : {true, false}) {
        const Strides strides{bytes + gaps.source, bytes + gaps.destination};
        const std::vector<std::byte> source = noise(kBlocks * strides.source, 1);
        std::vector<std::byte> destination = noise(kBlocks * strides.destination, 2);
        std::vector<std::byte> expected = destination;
        for (const BlockPair pair : pairs)
          std::copy_n(source.data() + pair.source * strides.source, bytes,
                      expected.data() + pair.destination * strides.destination);
        const auto done =
            swap_blocks_cuda({source.data(), destination.data(), bytes, strides.source,
                              strides.destination, pairs.data(), pairs.size()},
                             is_batched ? bytes : bytes + 1, nullptr);
        ASSERT_TRUE(done) << done.error().text;
        EXPECT_TRUE(destination == expected) << bytes << " bytes, gaps " << gaps.source << ", "
                                             << gaps.destination << (is_batched ? ", batched" : "");
      }
}

TEST(SwapCuda, TakesNoPairsAndRefusesPiecesThatOverlap) {
  EXPECT_TRUE(swap_blocks_cuda(whole_blocks(nullptr, nullptr, 4096, {}), 0, nullptr));
  std::byte memory[64] = {};
  const BlockPair pair{0, 0};
  const auto done = swap_blocks_cuda({memory, memory + 32, 32, 16, 32, &pair, 1}, 0, nullptr);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().text, "swap: 32 bytes of blocks that are 16 and 32 bytes apart");
}

}  // namespace
}  // namespace kvhive
