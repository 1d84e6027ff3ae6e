#include "kernels/cache_write.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "config/check.hpp"

namespace kvhive {
namespace {

struct Backend {
  const char* name;
  void (*write)(const CacheWriteArgs&);
};

/// A cache of poison, [block][K, V][G][S][D] with a gap after each head.
struct Cache {
  Cache(Dtype dtype, std::int32_t G, std::int32_t D, std::int32_t S, std::int32_t blocks) {
    const auto element = static_cast<std::int64_t>(bytes_of(dtype));
    kv.G = G;
    kv.S = S;
    kv.D = D;
    kv.dtype = dtype;
    kv.token_stride = D * element;
    kv.head_stride = S * kv.token_stride + 3 * element;
    kv.block_stride = 2 * G * kv.head_stride;
    bytes.assign(static_cast<std::size_t>(blocks * kv.block_stride), std::byte{0xcb});
    kv.k = bytes.data();
    kv.v = bytes.data() + G * kv.head_stride;
  }

  std::int64_t offset(std::int64_t slot_id, std::int32_t g, std::int32_t d) const {
    return slot_id / kv.S * kv.block_stride + g * kv.head_stride +
           slot_id % kv.S * kv.token_stride + d * static_cast<std::int64_t>(bytes_of(kv.dtype));
  }

  std::uint32_t bits_at(const std::byte* plane, std::int64_t slot_id, std::int32_t g,
                        std::int32_t d) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, plane + offset(slot_id, g, d), bytes_of(kv.dtype));
    return bits;
  }

  std::vector<std::byte> bytes;
  PagedKv kv;
};

std::uint32_t rounded(float value, Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return bf16_of_float(value);
    case Dtype::f16: return f16_of_float(value);
    case Dtype::f32: break;
    default: KV_CHECK(false, int(dtype));
  }
  return std::bit_cast<std::uint32_t>(value);
}

class CacheWrite : public testing::TestWithParam<std::tuple<Backend, Dtype>> {
 protected:
  static void write(const CacheWriteArgs& args) { std::get<Backend>(GetParam()).write(args); }
  static Dtype dtype() { return std::get<Dtype>(GetParam()); }
};

/// Any float at all, most of them ordinary.
std::vector<float> any_floats(std::size_t count) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(i % 4 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                                : static_cast<float>(random() % 65536) / 16384.0f - 2.0f);
  return values;
}

TEST_P(CacheWrite, PutsEveryRoundedValueIntoItsSlotAndTouchesNothingElse) {
  const std::int32_t G = 3, D = 40, S = 8, blocks = 30, T = 97;
  Cache cache(dtype(), G, D, S, blocks);
  const std::vector<float> k = any_floats(std::size_t{T} * G * D);
  std::vector<float> v(k.rbegin(), k.rend());
  std::vector<std::int64_t> slots(T, -1);
  for (std::int32_t t = 0; t < T; ++t)
    if (t % 10 != 3) slots[t] = std::int64_t{t} * 7 % (S * blocks);  // 7 and 240 share no factor

  std::vector<std::byte> expected = cache.bytes;
  const std::int64_t plane = cache.kv.v - cache.kv.k;
  for (std::int32_t t = 0; t < T; ++t) {
    if (slots[t] < 0) continue;
    for (std::int32_t i = 0; i < G * D; ++i) {
      const std::int64_t at = cache.offset(slots[t], i / D, i % D);
      const std::uint32_t k_bits = rounded(k[t * G * D + i], dtype());
      const std::uint32_t v_bits = rounded(v[t * G * D + i], dtype());
      std::memcpy(&expected[at], &k_bits, bytes_of(dtype()));
      std::memcpy(&expected[plane + at], &v_bits, bytes_of(dtype()));
    }
  }

  CacheWriteArgs args;
  args.k = k.data();
  args.v = v.data();
  args.slot_mapping = slots.data();
  args.kv = cache.kv;
  args.T = T;
  write(args);
  EXPECT_EQ(cache.bytes, expected);
}

TEST_P(CacheWrite, RoundsToNearestWithTiesToEven) {
  struct Example {
    float value;
    std::uint32_t bf16, f16;
  };
  const float inf = std::numeric_limits<float>::infinity();
  const Example examples[] = {
      {1.0f, 0x3f80, 0x3c00},
      {1.0f + 0x1p-8f, 0x3f80, 0x3c04},              // a tie in bf16: down to even
      {1.0f + 3 * 0x1p-8f, 0x3f82, 0x3c0c},          // a tie in bf16: up to even
      {1.0f + 0x1p-11f, 0x3f80, 0x3c00},             // a tie in f16: down to even
      {1.0f + 3 * 0x1p-11f, 0x3f80, 0x3c02},         // a tie in f16: up to even
      {-1.0f - 0x1p-8f - 0x1p-20f, 0xbf81, 0xbc04},  // just above the tie
      {65504.0f, 0x4780, 0x7bff},                    // the largest f16
      {65520.0f, 0x4780, 0x7c00},                    // a tie with f16's infinity
      {0x1p-24f, 0x3380, 0x0001},                    // the smallest f16
      {0x1p-25f, 0x3300, 0x0000},                    // a tie with zero in f16
      {-0.0f, 0x8000, 0x8000},
      {inf, 0x7f80, 0x7c00},
  };
  for (const Example& example : examples) {
    Cache cache(dtype(), 1, 1, 1, 1);
    const std::int64_t slot = 0;
    write({&example.value, &example.value, &slot, cache.kv, 1});
    const std::uint32_t expected = dtype() == Dtype::bf16  ? example.bf16
                                   : dtype() == Dtype::f16 ? example.f16
                                                           : rounded(example.value, Dtype::f32);
    EXPECT_EQ(cache.bits_at(cache.kv.k, 0, 0, 0), expected) << example.value;
    EXPECT_EQ(cache.bits_at(cache.kv.v, 0, 0, 0), expected) << example.value;
  }
}

TEST_P(CacheWrite, TakesNoTokens) {
  Cache cache(dtype(), 1, 8, 4, 1);
  const std::vector<std::byte> before = cache.bytes;
  CacheWriteArgs args;
  args.kv = cache.kv;
  write(args);
  EXPECT_EQ(cache.bytes, before);
}

INSTANTIATE_TEST_SUITE_P(Backends, CacheWrite,
                         testing::Combine(testing::Values(Backend{"Reference",
                                                                  cache_write_reference},
                                                          Backend{"Cpu", cache_write_cpu}),
                                          testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16)),
                         [](const auto& test) {
                           return std::string(std::get<Backend>(test.param).name) + "_" +
                                  std::string(to_string(std::get<Dtype>(test.param)));
                         });

}  // namespace
}  // namespace kvhive
