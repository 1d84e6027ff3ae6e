// Writes to packed pages: where each element lies; and whole groups written in registers, by the
// hardware or emulated, beside the same rows written one by one.

#include "kernels/cpu/packed/packed_write.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/memory/line_allocator.hpp"
#include "config/dtype.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/page_rows.hpp"
#include "kernels/page_address.hpp"

namespace kvhive {
namespace {

constexpr std::int32_t kTokens = 16, kHeads = 2;

struct Case {
  std::int32_t S, D, slot;
};

/// Bit patterns of all kinds: NaN with payloads, infinities, denormals.
template <class Bits>
LineVector<std::byte> random_rows(std::int32_t D) {
  LineVector<std::byte> rows(std::size_t(kTokens) * kHeads * std::size_t(D) * sizeof(Bits));
  std::mt19937 random(5);
  for (std::size_t at = 0; at < rows.size(); at += sizeof(Bits)) {
    auto bits = static_cast<Bits>(random());
    if (random() % 16 == 0) bits = static_cast<Bits>(bits | Bits{0x7f80} << 8 * (sizeof(Bits) - 2));
    if (random() % 16 == 0)
      bits = static_cast<Bits>(bits & ~(Bits{0x7f80} << 8 * (sizeof(Bits) - 2)));
    std::memcpy(&rows[at], &bits, sizeof bits);
  }
  return rows;
}

PagedKv page_of(const Case& c) {
  PagedKv kv;
  kv.layout = PageLayout::packed;
  kv.dtype = Dtype::bf16;
  kv.S = c.S;
  kv.D = c.D;
  kv.G = 1;
  return kv;
}

/// Head 1 of 16 tokens, written one by one into the page of K or V.
LineVector<std::byte> expected_page(const Case& c, const LineVector<std::byte>& rows, bool is_f32,
                                    bool is_key) {
  const PagedKv kv = page_of(c);
  LineVector<std::byte> page(std::size_t(c.S) * std::size_t(c.D) * 2);
  const std::size_t row_bytes = std::size_t(c.D) * (is_f32 ? 4 : 2);
  std::vector<std::uint16_t> stored(std::size_t(c.D));
  for (std::int32_t t = 0; t < kTokens; ++t) {
    const std::byte* const row = &rows[(std::size_t(t) * kHeads + 1) * row_bytes];
    if (is_f32)
      for (std::int32_t d = 0; d < c.D; ++d) {
        float value;
        std::memcpy(&value, row + 4 * d, sizeof value);
        stored[std::size_t(d)] = bf16_of_float(value);
      }
    else
      std::memcpy(stored.data(), row, row_bytes);
    (is_key ? write_key_row : write_value_row)(
        kv, reinterpret_cast<const std::byte*>(stored.data()), c.slot + t, page.data());
  }
  return page;
}

void expect_right(const PackedWriters& writers) {
  for (const Case& c : {Case{16, 32, 0}, Case{16, 128, 0}, Case{32, 64, 16}, Case{64, 96, 32}})
    for (const bool is_f32 : {false, true}) {
      const auto rows = is_f32 ? random_rows<std::uint32_t>(c.D) : random_rows<std::uint16_t>(c.D);
      const std::int64_t row_bytes = c.D * (is_f32 ? 4 : 2);
      const TokenRows from{&rows[std::size_t(row_bytes)], kHeads * row_bytes, c.D, rows.data()};
      for (const bool is_key : {false, true}) {
        const auto expected = expected_page(c, rows, is_f32, is_key);
        const GroupWriter write = is_f32 ? (is_key ? writers.float_keys : writers.float_values)
                                         : (is_key ? writers.keys : writers.values);
        const auto offset =
            is_key ? key_offset(page_of(c), c.slot, 0) : value_offset(page_of(c), c.slot, 0);
        for (const Stores stores : {Stores::cached, Stores::streamed})
          for (const WriteWay way : {WriteWay::by_tokens, WriteWay::by_lines}) {
            LineVector<std::byte> page(expected.size());
            write(from, page.data() + offset, c.S, stores, way);
            EXPECT_TRUE(page == expected)
                << "S " << c.S << ", D " << c.D << (is_f32 ? ", f32" : ", bf16")
                << (is_key ? ", K" : ", V");
          }
      }
    }
}

/// The layout as config/page_layout.hpp describes it, element by element.
TEST(PackedWrite, PutsEveryElementWhereTheLayoutSays) {
  for (const std::int32_t S : {16, 32, 64}) {
    constexpr std::int32_t kD = 64;
    PagedKv kv{.G = kHeads, .S = S, .D = kD, .layout = PageLayout::packed};
    kv.head_stride = S * kD * 2;
    kv.block_stride = 2 * kHeads * kv.head_stride;
    std::vector<std::uint16_t> arena(3 * kv.block_stride / 2, 0xffff);
    kv.k = reinterpret_cast<std::byte*>(arena.data());
    kv.v = kv.k + kHeads * kv.head_stride;
    const std::vector<std::int64_t> slots{2 * S + 5, -1, S - 1, 2 * S + 4};
    std::vector<float> k(slots.size() * kHeads * kD), v(k.size());
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = static_cast<float>(i % 251);
      v[i] = -static_cast<float>(i % 253) - 1;
    }
    cache_write_cpu({.k = k.data(),
                     .v = v.data(),
                     .slot_mapping = slots.data(),
                     .kv = kv,
                     .T = static_cast<std::int32_t>(slots.size())});
    std::size_t written = 0;
    for (std::size_t t = 0; t < slots.size(); ++t)
      for (std::int32_t g = 0; g < kHeads && slots[t] >= 0; ++g)
        for (std::int32_t d = 0; d < kD; ++d, ++written) {
          const std::int64_t s = slots[t] % S;
          const std::int64_t head = (slots[t] / S * kv.block_stride + g * kv.head_stride) / 2;
          const std::int64_t k_at =
              head + (d / 32 * (S / 16) + s / 16) * 512 + d % 32 / 2 * 32 + s % 16 * 2 + d % 2;
          const std::int64_t v_at = head + kHeads * kv.head_stride / 2 +
                                    (d / 16 * (S / 2) + s / 2) * 32 + d % 16 * 2 + s % 2;
          const std::size_t from = (t * kHeads + g) * kD + d;
          ASSERT_EQ(arena[k_at], bf16_of_float(k[from])) << S << " " << t << " " << g << " " << d;
          ASSERT_EQ(arena[v_at], bf16_of_float(v[from])) << S << " " << t << " " << g << " " << d;
        }
    const auto untouched = std::count(arena.begin(), arena.end(), 0xffff);
    EXPECT_EQ(arena.size() - untouched, 2 * written);
  }
}

TEST(PackedWrite, EmulatedPutsEachElementInItsPlace) {
  if (!grants(CpuKernels::avx2)) GTEST_SKIP() << "NOT RUN: " << missing_for(CpuKernels::avx2);
  expect_right(emulated::kPackedWriters);
}

TEST(PackedWrite, PutsEachElementInItsPlace) {
  if (!grants(CpuKernels::avx512_bf16))
    GTEST_SKIP() << "NOT RUN: " << missing_for(CpuKernels::avx512_bf16);
  expect_right(native::kPackedWriters);
}

}  // namespace
}  // namespace kvhive
