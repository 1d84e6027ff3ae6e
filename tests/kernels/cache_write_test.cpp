// Writes to the cache; every byte of the arena is compared.

#include "kernels/cache_write.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backends.hpp"
#include "kernels/copy_way.hpp"
#include "kernels/element.hpp"
#include "kernels/page_address.hpp"
#include "paged_arena.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

class CacheWrite : public testing::TestWithParam<Backend> {
 protected:
  static void write(const CacheWriteArgs& args) { GetParam().write(args); }
};

/// Ordinary numbers, now and then one with any bits at all, and one row of zeros.
std::vector<float> any_floats(std::size_t count, std::int32_t D) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(i / D == 1    ? 0.0f
                     : i % 61 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                                   : static_cast<float>(random() % 65536) / 16384.0f - 2.0f);
  return values;
}

std::vector<std::byte> as_elements(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> elements(values.size() * bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(elements.data(), i, values[i], dtype);
  return elements;
}

struct Written {
  std::int64_t block;
  std::int32_t g, slot;
};

/// Expects that a row of D elements has been written to its slot of `plane`.
void expect_row(const PagedKv& kv, Written at, const std::byte* row, Dtype in_dtype, bool is_key,
                float* scales) {
  float amax = 0;
  for (std::int32_t d = 0; d < kv.D; ++d) {
    const float value = std::fabs(load_element(row, d, in_dtype));
    if (value > amax) amax = value;
  }
  float scale = 1;
  if (scales != nullptr) {
    float* place = scale_at(kv.scales, scales, at.block, at.g, at.slot);
    if (kv.scales.are_per_token())
      *place = amax / largest_of(kv.dtype) > 0 ? amax / largest_of(kv.dtype) : 1;
    scale = *place;
  }
  std::byte* page = (is_key ? kv.k : kv.v) + page_offset(kv, at.block, at.g);
  for (std::int32_t d = 0; d < kv.D; ++d)
    store_element(page + (is_key ? key_offset : value_offset)(kv, at.slot, d),
                  load_element(row, d, in_dtype) / scale, kv.dtype);
}

void expect_written(const Backend& backend, const Shape& shape) {
  constexpr std::int32_t kBlocks = 30, kTokens = 97;
  PagedArena got(shape, kBlocks), want(shape, kBlocks);
  if (!backend.takes(got.kv(), shape.q_dtype)) return;
  const std::size_t row = bytes_of(shape.q_dtype) * shape.D;
  const std::vector<float> floats = any_floats(std::size_t{kTokens} * shape.G * shape.D, shape.D);
  const std::vector<std::byte> k = as_elements(floats, shape.q_dtype);
  const std::vector<std::byte> v = as_elements({floats.rbegin(), floats.rend()}, shape.q_dtype);
  std::vector<std::int64_t> slots(kTokens, -1);
  for (std::int32_t t = 0; t < kTokens; ++t)
    if (t % 10 != 3)
      slots[t] = std::int64_t{t} * 7 %
                 (shape.S * kBlocks);  // 7 divides neither S nor the number of blocks

  for (std::int32_t t = 0; t < kTokens; ++t)
    for (std::int32_t g = 0; g < shape.G && slots[t] >= 0; ++g) {
      const Written at{slots[t] / shape.S, g, static_cast<std::int32_t>(slots[t] % shape.S)};
      const std::size_t from = (std::size_t(t) * shape.G + g) * row;
      const PagedKv kv = want.kv();
      expect_row(kv, at, &k[from], shape.q_dtype, true, kv.scales.k);
      expect_row(kv, at, &v[from], shape.q_dtype, false, kv.scales.v);
    }

  CacheWriteArgs args;
  args.k = k.data();
  args.v = v.data();
  args.slot_mapping = slots.data();
  args.kv = got.kv();
  args.T = kTokens;
  args.in_dtype = shape.q_dtype;
  backend.write(args);
  EXPECT_TRUE(got.bytes() == want.bytes())
      << to_string(shape.dtype) << " of " << to_string(shape.q_dtype) << " storage "
      << int(shape.storage) << " scaling " << int(shape.scaling) << " S " << shape.S << " D "
      << shape.D;
}

constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

TEST_P(CacheWrite, PutsEveryRoundedValueIntoItsSlotAndTouchesNothingElse) {
  for (const Storage storage : {Storage::hnd, Storage::nhd})
    for (const Dtype in : kActivations)
      for (const Dtype dtype : kActivations)
        for (const std::int32_t S : {8, 16, 32})
          expect_written(
              GetParam(),
              {.dtype = dtype, .G = 3, .D = 40, .S = S, .q_dtype = in, .storage = storage});
  for (const Dtype in : kActivations)
    for (const std::int32_t S : {16, 32, 64})
      expect_written(GetParam(),
                     {.G = 2, .D = 96, .S = S, .q_dtype = in, .storage = Storage::packed});
}

TEST_P(CacheWrite, QuantisesWithGivenScalesAndComputesThosePerToken) {
  for (const Storage storage : {Storage::hnd, Storage::nhd, Storage::packed})
    for (const Dtype in : kActivations)
      for (const Dtype dtype : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
        for (const Scaling scaling :
             {Scaling::none, Scaling::tensor, Scaling::head, Scaling::token})
          expect_written(GetParam(), {.dtype = dtype,
                                      .G = 3,
                                      .D = storage == Storage::packed ? 96 : 80,
                                      .S = 16,
                                      .q_dtype = in,
                                      .storage = storage,
                                      .scaling = scaling});
}

TEST_P(CacheWrite, RoundingErrorsAreAsSmallAsTheTypeAllows) {
  for (const auto& [dtype, bar] : {std::pair{Dtype::e4m3, 4e-2}, {Dtype::int8, 1.5e-2}}) {
    const Shape shape{.dtype = dtype, .G = 1, .D = 128, .scaling = Scaling::token};
    PagedArena arena(shape, 1);
    const PagedKv kv = arena.kv();
    if (!GetParam().takes(kv, Dtype::f32)) continue;
    std::vector<float> values;
    for (std::int32_t d = 0; d < 128; ++d) values.push_back(std::sin(static_cast<float>(d * d)));
    const std::int64_t slot = 5;
    const std::vector<std::int64_t> slots{slot};
    write({values.data(), values.data(), slots.data(), kv, 1});
    double error = 0, norm = 0;
    for (std::int32_t d = 0; d < 128; ++d) {
      const double stored = load_element(kv.k + key_offset(kv, slot, d), dtype);
      const double scale = *scale_at(kv.scales, kv.scales.k, 0, 0, slot);
      error += std::pow(stored * scale - values[d], 2);
      norm += std::pow(values[d], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), bar) << to_string(dtype);
  }
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
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (const Example& example : examples) {
      PagedArena arena({.dtype = dtype, .G = 1, .D = 8}, 1);
      const std::vector<float> row(8, example.value);
      const std::vector<std::int64_t> slots{0};
      write({row.data(), row.data(), slots.data(), arena.kv(), 1});
      std::uint16_t bits;
      std::memcpy(&bits, arena.kv().v, sizeof bits);
      EXPECT_EQ(bits, dtype == Dtype::bf16 ? example.bf16 : example.f16) << example.value;
    }
}

/// A PagedArena's blocks, moved to an address on a whole line: only such pages are written in whole
/// groups, past the caches.
class AlignedArena {
 public:
  AlignedArena(const Shape& shape, std::int64_t blocks) : arena_(shape, blocks) {
    bytes_.assign(arena_.bytes().size() + 64, std::byte{0xff});
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    first_ = bytes_.data() + (64 - address % 64) % 64;
  }

  PagedKv kv() {
    PagedKv view = arena_.kv();
    view.v = first_ + (view.v - view.k);
    view.k = first_;
    return view;
  }
  /// For pages of bf16. Which NaN a NaN becomes is up to the processor, but not the poison.
  bool holds_the_same(const AlignedArena& want) const {
    for (std::size_t at = 0; at < arena_.bytes().size(); at += 2) {
      std::uint16_t mine, wanted;
      std::memcpy(&mine, first_ + at, sizeof mine);
      std::memcpy(&wanted, want.first_ + at, sizeof wanted);
      const bool are_nan = std::isnan(float_of_bf16(mine)) && std::isnan(float_of_bf16(wanted));
      if (mine != wanted && (!are_nan || mine == 0xffff)) return false;
    }
    return true;
  }

 private:
  PagedArena arena_;
  std::vector<std::byte> bytes_;
  std::byte* first_;
};

/// Writes tokens to consecutive slots of shuffled blocks, so that whole groups of 16 are written at
/// once, and expects the reference's bytes.
void expect_groups(const Backend& backend, const Shape& shape, std::int32_t tokens) {
  const std::int32_t blocks = tokens / shape.S + 2;
  AlignedArena got(shape, blocks), want(shape, blocks);
  if (!backend.takes(got.kv(), shape.q_dtype)) return;
  const std::vector<float> floats = any_floats(std::size_t(tokens) * shape.G * shape.D, shape.D);
  const std::vector<std::byte> k = as_elements(floats, shape.q_dtype);
  const std::vector<std::byte> v = as_elements({floats.rbegin(), floats.rend()}, shape.q_dtype);
  std::vector<std::int64_t> slots;
  for (std::int32_t t = 0; t < tokens; ++t)
    slots.push_back((t / shape.S * 7 % (blocks - 1) + 1) * shape.S + t % shape.S);
  CacheWriteArgs args{.k = k.data(),
                      .v = v.data(),
                      .slot_mapping = slots.data(),
                      .kv = got.kv(),
                      .T = tokens,
                      .in_dtype = shape.q_dtype};
  backend.write(args);
  args.kv = want.kv();
  cache_write_reference(args);
  EXPECT_TRUE(got.holds_the_same(want))
      << "storage " << int(shape.storage) << " of " << to_string(shape.q_dtype) << " S " << shape.S
      << " D " << shape.D << " write way " << int(write_way().way);
}

TEST_P(CacheWrite, WritesTheSameBytesInWholeGroups) {
  for (const Dtype in : kActivations)
    for (const std::int32_t S : {16, 32, 64})
      for (const std::int32_t D : {32, 96, 128})
        for (const std::int64_t gap : {0, 48})  // pages on whole lines, or not
          expect_groups(
              GetParam(),
              {.G = 3, .D = D, .S = S, .q_dtype = in, .storage = Storage::packed, .gap = gap}, 134);
}

TEST_P(CacheWrite, WritesTheSameBytesBeyondTheProcessorsCachesInEveryWay) {
  for (const WriteWay way : {WriteWay::by_tokens, WriteWay::by_lines}) {
    force_write_way(way);
    for (const Dtype in : {Dtype::bf16, Dtype::f32})
      for (const Storage storage : {Storage::hnd, Storage::packed})
        for (const std::int32_t S : {16, 32})
          // 8 MiB and some; blocks and heads on whole lines.
          expect_groups(GetParam(),
                        {.G = 4, .D = 128, .S = S, .q_dtype = in, .storage = storage, .gap = 0},
                        4100);
  }
  force_write_way({});
}

TEST_P(CacheWrite, TakesNoTokens) {
  PagedArena arena({}, 1);
  const std::vector<std::byte> before = arena.bytes();
  CacheWriteArgs args;
  args.kv = arena.kv();
  write(args);
  EXPECT_EQ(arena.bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Backends, CacheWrite, testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive
