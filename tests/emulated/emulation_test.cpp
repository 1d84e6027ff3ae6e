// The emulation of tiles and of bf16 dot products gives what the hardware gives, bit by bit.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/instructions/cpu_features.hpp"
#include "tests/emulated/tile_operation.hpp"

namespace kvhive {
namespace {

/// What the elements are like.
enum class Numbers {
  of_near_size,
  of_all_sizes,
  with_denormals,
  any_bits,
  small_results,
  beside_the_smallest  ///< results that are the smallest normal number, or just too small
};

class Random {
 public:
  Random(Numbers numbers, std::uint64_t seed) : numbers_(numbers), random_(seed) {}

  std::uint64_t bits() { return random_(); }

  std::uint16_t bf16() {
    const auto bits = static_cast<std::uint16_t>(random_());
    constexpr std::uint16_t kExponent = 0x7f80, kOthers = 0x807f;
    const auto with_exponent = [&](std::uint64_t exponent) {
      return static_cast<std::uint16_t>((bits & kOthers) | exponent << 7);
    };
    switch (numbers_) {
      case Numbers::of_near_size: return with_exponent(126 + random_() % 2);
      case Numbers::of_all_sizes: return with_exponent(32 + random_() % 190);
      case Numbers::with_denormals:
        if (random_() % 3 == 0) return bits & kOthers;
        return (bits & kExponent) == kExponent ? with_exponent(127) : bits;
      case Numbers::any_bits: return bits;
      case Numbers::small_results: return with_exponent(50 + random_() % 25);
      case Numbers::beside_the_smallest: return with_exponent(50 + random_() % 4);
    }
    return 0;
  }

  float f32() {
    auto bits = static_cast<std::uint32_t>(random_());
    constexpr std::uint32_t kExponent = 0x7f800000, kOthers = 0x807fffff;
    const auto with_exponent = [&](std::uint64_t exponent) {
      bits = static_cast<std::uint32_t>((bits & kOthers) | exponent << 23);
    };
    switch (numbers_) {
      case Numbers::of_near_size: with_exponent(127 + random_() % 4); break;
      case Numbers::of_all_sizes: with_exponent(32 + random_() % 190); break;
      case Numbers::with_denormals:
        if (random_() % 3 == 0) bits &= kOthers;
        if ((bits & kExponent) == kExponent) with_exponent(127);
        break;
      case Numbers::any_bits: break;
      case Numbers::small_results: with_exponent(random_() % 3); break;
      case Numbers::beside_the_smallest:
        bits = (bits & 0x80000000u) | (0x00800000u + bits % 3);
        break;
    }
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  void fill(TileOperation& operation) {
    for (std::size_t i = 0; i < 512; ++i) {
      const std::uint16_t x = bf16(), y = bf16();
      std::memcpy(operation.a + 2 * i, &x, sizeof x);
      std::memcpy(operation.b + 2 * i, &y, sizeof y);
    }
    for (std::size_t i = 0; i < 256; ++i) {
      const float sum = f32();
      std::memcpy(operation.sums + 4 * i, &sum, sizeof sum);
    }
  }

 private:
  Numbers numbers_;
  std::mt19937_64 random_;
};

/// NaN has many payloads, which nothing depends on.
template <std::size_t kBytes>
std::size_t differing_floats(const unsigned char (&a)[kBytes], const unsigned char (&b)[kBytes],
                             std::size_t count) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float x, y;
    std::memcpy(&x, a + 4 * i, sizeof x);
    std::memcpy(&y, b + 4 * i, sizeof y);
    if (std::isnan(x) && std::isnan(y)) continue;
    differing += std::memcmp(&x, &y, sizeof x) != 0;
  }
  return differing;
}

class Emulation : public testing::TestWithParam<Numbers> {
 protected:
  static constexpr int kRounds = 4000;  // a million elements
  Random random_{GetParam(), 1};
};

TEST_P(Emulation, OfTilesHasTheBitsOfTheHardware) {
  if (!cpu_features().amx_bf16) GTEST_SKIP() << "this CPU has no tiles";
  for (int round = 0; round < kRounds; ++round) {
    TileOperation hardware;
    hardware.rows = 1 + static_cast<std::int32_t>(random_.bits() % 16);
    hardware.columns = 1 + static_cast<std::int32_t>(random_.bits() % 16);
    hardware.pairs = 1 + static_cast<std::int32_t>(random_.bits() % 16);
    random_.fill(hardware);
    TileOperation emulation = hardware;
    native::multiply_tiles(hardware);
    emulated::multiply_tiles(emulation);
    ASSERT_EQ(differing_floats(hardware.sums, emulation.sums, 256), 0u) << "round " << round;
  }
}

TEST_P(Emulation, OfDotProductsHasTheBitsOfTheHardware) {
  if (!cpu_features().avx512_bf16) GTEST_SKIP() << "this CPU has no bf16 dot products";
  for (int round = 0; round < 16 * kRounds; ++round) {
    TileOperation hardware;
    random_.fill(hardware);
    TileOperation emulation = hardware, multiplied = hardware, both = hardware;
    native::multiply_pairs(hardware);
    emulated::multiply_pairs(emulation);
    ASSERT_EQ(differing_floats(hardware.sums, emulation.sums, 16), 0u) << "round " << round;
    multiplied::multiply_pairs(multiplied);
    ASSERT_EQ(differing_floats(hardware.sums, multiplied.sums, 16), 0u) << "round " << round;
    emulated_multiplied::multiply_pairs(both);
    ASSERT_EQ(differing_floats(hardware.sums, both.sums, 16), 0u) << "round " << round;
    std::memcpy(emulation.sums, hardware.sums, sizeof emulation.sums);  // a NaN's payload, too
    native::narrow(hardware);
    emulated::narrow(emulation);
    ASSERT_EQ(std::memcmp(hardware.a, emulation.a, 32), 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, Emulation,
                         testing::Values(Numbers::of_near_size, Numbers::of_all_sizes,
                                         Numbers::with_denormals, Numbers::any_bits,
                                         Numbers::small_results, Numbers::beside_the_smallest));

}  // namespace
}  // namespace kvhive
