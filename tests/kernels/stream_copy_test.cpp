// Copies past the caches, in each way and with each instruction set.

#include "kernels/cpu/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <random>
#include <vector>

#include "config/choices.hpp"
#include "tests/support/pretended_cpu.hpp"

namespace kvhive {
namespace {

using testing::PretendedCpu;

constexpr CopyWay kWays[] = {CopyWay::one_run, CopyWay::four_pages};

std::vector<std::byte> noise(std::size_t bytes) {
  std::mt19937 random(1);
  std::vector<std::byte> made(bytes);
  std::generate(made.begin(), made.end(), [&] { return std::byte(random()); });
  return made;
}

/// Copies `bytes` from an address that is aligned to nothing to one that is aligned to 64 bytes.
void expect_copy(std::size_t bytes, CopyWay way, bool prefetches) {
  const std::vector<std::byte> source = noise(bytes + 3);
  std::vector<std::byte> destination(bytes + 3 * 64, std::byte{0x5a});
  std::vector<std::byte> expected = destination;
  const auto address = reinterpret_cast<std::uintptr_t>(destination.data());
  const std::size_t at = 64 + (64 - address % 64) % 64;
  std::copy_n(source.begin() + 3, bytes, expected.begin() + static_cast<std::ptrdiff_t>(at));
  stream_copy(source.data() + 3, destination.data() + at, bytes,
              prefetches ? source.data() : nullptr, way);
  end_streams();
  EXPECT_TRUE(destination == expected) << bytes << " bytes, " << to_string(way);
}

TEST(StreamCopy, CopiesTheBytesAndTouchesNothingElseInEveryWay) {
  for (const std::int64_t target : {HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) == 0 && target != HWY_SCALAR) continue;
    const PretendedCpu cpu(target);
    for (const CopyWay way : kWays)
      for (const bool prefetches : {false, true})
        for (const std::size_t lines : {0, 1, 3, 64, 255, 256, 257, 320, 511, 512, 600, 2048})
          expect_copy(lines * 64, way, prefetches);
  }
}

}  // namespace
}  // namespace kvhive
