// Cache write, block copy and state merge on the emulated GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "config/fp8.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/schedules.hpp"
#include "tests/kernels/cuda/stored_element.hpp"

namespace kvhive {
namespace {

using testing_support::in_every_schedule;
using testing_support::load_element;
using testing_support::store_element;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Dtype kWide[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr Dtype kAll[] = {Dtype::f32,  Dtype::bf16, Dtype::f16,
                          Dtype::e4m3, Dtype::e5m2, Dtype::int8};

std::vector<std::byte> stored(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(&bytes[i * bytes_of(dtype)], dtype, values[i]);
  return bytes;
}

enum class Scales { none, per_tensor, per_head, per_token };

struct WriteCase {
  Dtype in, out;
  std::int32_t D;
  Scales scales;
  std::int64_t gap;  ///< bytes after each head; 0, or rows are aligned to elements only
};

/// A cache filled with poison, and the content expected after a write.
class WriteFixture {
 public:
  static constexpr std::int32_t G = 3, S = 4, kBlocks = 5;

  explicit WriteFixture(const WriteCase& c) : case_(c) {
    kv_.G = G;
    kv_.S = S;
    kv_.D = c.D;
    kv_.dtype = c.out;
    kv_.token_stride = c.D * static_cast<std::int64_t>(bytes_of(c.out));
    kv_.head_stride = S * kv_.token_stride + c.gap;
    plane_ = G * kv_.head_stride;
    kv_.block_stride = 2 * plane_ + c.gap;
    arena_.assign(static_cast<std::size_t>(kBlocks * kv_.block_stride), std::byte{0xee});
    scales_.assign(2 * kBlocks * G * S, 0.5f);
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_[i] = 0.25f + 0.125f * float(i % 7);
    constexpr auto f = static_cast<std::int64_t>(sizeof(float));
    if (c.scales == Scales::per_head) kv_.scales.head_stride = 4 * f;
    if (c.scales == Scales::per_token) {
      kv_.scales.token_stride = f;
      kv_.scales.head_stride = S * f;
      kv_.scales.block_stride = G * S * f;
    }
  }

  void expect_written(const std::vector<float>& k, const std::vector<float>& v,
                      const std::vector<std::int64_t>& slots) {
    std::vector<std::byte> want = arena_;
    std::vector<float> want_scales = scales_;
    write_plainly(k, slots, want.data(), want_scales.data());
    write_plainly(v, slots, want.data() + plane_, want_scales.data() + scales_.size() / 2);

    const std::vector<std::byte> k_in = stored(k, case_.in), v_in = stored(v, case_.in);
    in_every_schedule([&] {
      std::vector<std::byte> arena = arena_;
      std::vector<float> scales = scales_;
      CacheWriteArgs args;
      args.k = k_in.data();
      args.v = v_in.data();
      args.slot_mapping = slots.data();
      args.kv = kv_;
      args.kv.k = arena.data();
      args.kv.v = arena.data() + plane_;
      if (case_.scales != Scales::none) {
        args.kv.scales.k = scales.data();
        args.kv.scales.v = scales.data() + scales.size() / 2;
      }
      args.T = static_cast<std::int32_t>(slots.size());
      args.in_dtype = case_.in;
      const Expected<void> done = cache_write_cuda(args, nullptr);
      ASSERT_TRUE(done.has_value()) << done.error().text;
      EXPECT_EQ(arena, want);
      EXPECT_EQ(std::memcmp(scales.data(), want_scales.data(), scales.size() * 4), 0);
    });
  }

 private:
  std::int64_t element_offset(std::int64_t slot, std::int64_t d) const {
    return slot * kv_.token_stride + d * static_cast<std::int64_t>(bytes_of(case_.out));
  }

  void write_plainly(const std::vector<float>& values, const std::vector<std::int64_t>& slots,
                     std::byte* base, float* scales) const {
    for (std::size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      const std::int64_t block = slots[t] / S, slot = slots[t] % S;
      for (std::int32_t g = 0; g < G; ++g) {
        std::vector<float> row(static_cast<std::size_t>(case_.D));
        for (std::size_t d = 0; d < row.size(); ++d) {
          const float value = values[(t * G + static_cast<std::size_t>(g)) * row.size() + d];
          row[d] = load_element(stored({value}, case_.in).data(), case_.in);
        }
        float& scale = scales[(block * kv_.scales.block_stride + g * kv_.scales.head_stride +
                               slot * kv_.scales.token_stride) /
                              static_cast<std::int64_t>(sizeof(float))];
        if (case_.scales == Scales::per_token) {
          float amax = 0;
          for (const float value : row) amax = std::fmax(amax, std::fabs(value));
          scale = amax > 0 ? amax / largest_of(case_.out) : 1.0f;
        }
        const float divisor = case_.scales == Scales::none ? 1.0f : scale;
        for (std::size_t d = 0; d < row.size(); ++d)
          store_element(base + block * kv_.block_stride + g * kv_.head_stride +
                            element_offset(slot, static_cast<std::int64_t>(d)),
                        case_.out, row[d] / divisor);
      }
    }
  }

  WriteCase case_;
  PagedKv kv_;
  std::int64_t plane_ = 0;
  std::vector<std::byte> arena_;
  std::vector<float> scales_;
};

/// Ordinary values and values that need rounding, saturate, or are infinite or NaN.
std::vector<float> made_up_values(std::size_t n, std::uint32_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,  -0.0f, 1e-9f, 3e-5f, 1e-6f, 447.9f, 464.1f,
                           -1e6f, 70000, kInf,  -kInf, 0.5f,  1.5f,   -126.5f};
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& value : values)
    value = random() % 8 == 0 ? special[random() % std::size(special)]
                              : static_cast<float>(random() % 65536) / 8192.0f - 4.0f;
  return values;
}

const std::vector<std::int64_t> kSlots = {7, -1, 0, 19, 12, 13, -1};

void expect_write(const WriteCase& c) {
  SCOPED_TRACE(std::string(to_string(c.in)) + " to " + std::string(to_string(c.out)) + ", D " +
               std::to_string(c.D) + ", scales " + std::to_string(int(c.scales)) + ", gap " +
               std::to_string(c.gap));
  const std::size_t n = kSlots.size() * WriteFixture::G * static_cast<std::size_t>(c.D);
  std::vector<float> k = made_up_values(n, 1), v = made_up_values(n, 2);
  if (c.scales == Scales::per_token)  // inf / inf is NaN, whose bits are unspecified
    for (auto* values : {&k, &v})
      for (float& value : *values) value = std::isinf(value) ? 3.0f : value;
  WriteFixture(c).expect_written(k, v, kSlots);
}

TEST(CacheWriteCuda, StoresEveryDtypeBitForBit) {
  for (const Dtype in : kWide)
    for (const Dtype out : kAll)
      for (const std::int64_t gap : {0, 4})
        expect_write({in, out, 72, Scales::none, out == Dtype::f32 ? gap * 2 : gap});
}

TEST(CacheWriteCuda, DividesByGivenScalesAndMakesThosePerToken) {
  for (const Dtype out : {Dtype::e4m3, Dtype::e5m2, Dtype::int8, Dtype::bf16})
    for (const Scales scales : {Scales::per_tensor, Scales::per_head, Scales::per_token})
      for (const std::int32_t D : {64, 80, 120, 256})
        if (out != Dtype::bf16 || scales != Scales::per_token)
          expect_write({Dtype::bf16, out, D, scales, 0});
}

TEST(CacheWriteCuda, TakesAnyAlignment) {
  expect_write({Dtype::f16, Dtype::e4m3, 65, Scales::per_token, 3});
  expect_write({Dtype::bf16, Dtype::bf16, 96, Scales::none, 2});
}

TEST(CacheWriteCuda, KeepsNaN) {
  for (const Dtype out : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::e4m3, Dtype::e5m2}) {
    const std::vector<float> in(64, kNaN);
    std::vector<std::byte> arena(2 * 64 * 4, std::byte{0});
    const std::int64_t slot = 0;
    CacheWriteArgs args;
    args.k = args.v = in.data();
    args.slot_mapping = &slot;
    args.kv = {arena.data(), arena.data() + 256, 512, 256, 256, 1, 1, 64, out};
    args.T = 1;
    ASSERT_TRUE(cache_write_cuda(args, nullptr));
    switch (out) {
      case Dtype::e4m3: EXPECT_TRUE(std::isnan(float_of_e4m3(std::uint8_t(arena[9])))); break;
      case Dtype::e5m2: EXPECT_TRUE(std::isnan(float_of_e5m2(std::uint8_t(arena[9])))); break;
      default: EXPECT_TRUE(std::isnan(load_element(arena.data(), out)));
    }
  }
}

TEST(CacheWriteCuda, RefusesWhatItCannotDo) {
  CacheWriteArgs args;
  args.kv.G = args.kv.S = 1;
  args.kv.D = 64;
  args.T = 1;
  const auto refused = [](const CacheWriteArgs& with) {
    const std::uint64_t before = simt::statistics().blocks;
    const Expected<void> done = cache_write_cuda(with, nullptr);
    EXPECT_EQ(simt::statistics().blocks, before);
    return done ? Errc::none : done.error().code;
  };
  CacheWriteArgs packed = args, narrow = args, scaled = args, empty = args;
  packed.kv.layout = PageLayout::packed;
  EXPECT_EQ(refused(packed), Errc::unsupported);
  narrow.in_dtype = Dtype::int8;
  EXPECT_EQ(refused(narrow), Errc::unsupported);
  scaled.kv.scales.token_stride = 4;
  EXPECT_EQ(refused(scaled), Errc::bad_argument);
  empty.T = 0;
  EXPECT_EQ(refused(empty), Errc::none);
}

TEST(BlockCopyCuda, CopiesFragmentsAndNothingElse) {
  for (const std::size_t bytes : {16u, 48u, 4096u, 16400u, 33u, 1025u}) {
    const bool is_odd = bytes % 16 != 0;
    const std::size_t source_stride = bytes + (is_odd ? 7 : 32);
    const std::size_t destination_stride = bytes + (is_odd ? 1 : 16);
    std::vector<std::byte> source(6 * source_stride), before(5 * destination_stride);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i * 31 % 251);
    for (std::size_t i = 0; i < before.size(); ++i) before[i] = std::byte(i * 17 % 241);
    const std::vector<BlockPair> pairs = {{5, 0}, {0, 4}, {5, 2}};
    std::vector<std::byte> want = before;
    for (const BlockPair pair : pairs)
      std::memcpy(&want[pair.destination * destination_stride],
                  &source[pair.source * source_stride], bytes);
    in_every_schedule([&] {
      std::vector<std::byte> destination = before;
      const Expected<void> done =
          block_copy_cuda({source.data(), destination.data(), bytes, source_stride,
                           destination_stride, pairs.data(), pairs.size()},
                          nullptr);
      ASSERT_TRUE(done.has_value());
      EXPECT_EQ(destination, want);
    });
  }
}

TEST(MergeStatesCuda, WeighsPartsAndLeavesOutEmptyOnes) {
  constexpr std::int32_t T = 3, H = 3, D = 80;
  constexpr std::size_t kRows = T * H;
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> a_lse = {0, 3, none, none, -90, 90, 1, 0.5f, -2};
  const std::vector<float> b_lse = {0, 1, 2, none, 90, 89, none, -0.5f, 4};
  for (const Dtype dtype : kWide) {
    std::vector<float> a = made_up_values(kRows * D, 3), b = made_up_values(kRows * D, 4);
    for (auto* part : {&a, &b})
      for (float& value : *part) value = std::fabs(value) < 500 ? value : 1.0f;
    for (std::size_t i = 0; i < kRows * D; ++i) {
      if (a_lse[i / D] == none) a[i] = kNaN;
      if (b_lse[i / D] == none) b[i] = kNaN;
    }
    const std::vector<std::byte> a_in = stored(a, dtype), b_in = stored(b, dtype);
    in_every_schedule([&] {
      std::vector<std::byte> out = a_in;  // in place
      std::vector<float> lse = b_lse;
      MergeStatesArgs args{
          out.data(), b_in.data(), a_lse.data(), lse.data(), out.data(), lse.data(), T,
          H,          D,           dtype};
      ASSERT_TRUE(merge_states_cuda(args, nullptr).has_value());
      for (std::size_t row = 0; row < kRows; ++row) {
        const double wa = std::exp(double(a_lse[row])), wb = std::exp(double(b_lse[row]));
        const double sum = wa + wb;
        for (std::size_t i = row * D; i < (row + 1) * D; ++i) {
          const std::size_t at = i * bytes_of(dtype);
          double want = 0;
          if (wa > 0) want += wa / sum * load_element(&a_in[at], dtype);
          if (wb > 0) want += wb / sum * load_element(&b_in[at], dtype);
          const double tolerance = dtype == Dtype::f32 ? 1e-5 : dtype == Dtype::f16 ? 1e-3 : 8e-3;
          EXPECT_NEAR(load_element(&out[at], dtype), want, tolerance * (std::fabs(want) + 0.01))
              << row;
        }
        if (sum > 0)
          EXPECT_NEAR(lse[row], std::log(sum), 2e-4);
        else
          EXPECT_EQ(lse[row], none);
      }
    });
  }
}

}  // namespace
}  // namespace kvhive
