// Latent attention and writing its cache on the emulated GPU, compared with the reference.

#include "kernels/paged_mla.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/simt/launch.hpp"
#include "tests/kernels/cuda/schedules.hpp"
#include "tests/kernels/cuda/stored_element.hpp"

namespace kvhive {
namespace {

using testing_support::in_every_schedule;
using testing_support::load_element;
using testing_support::store_element;

constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr MlaRow kRows[] = {MlaRow::bf16, MlaRow::fp8};

/// Numbers between -2 and 2 as `dtype` holds them.
std::vector<std::byte> numbers(std::size_t count, Dtype dtype, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count * bytes_of(dtype));
  for (std::size_t i = 0; i < count; ++i)
    store_element(&bytes[i * bytes_of(dtype)], dtype,
                  static_cast<float>(random() % 65536) / 16384.0f - 2.0f);
  return bytes;
}

/// A cache of NaN.
struct Cache {
  Cache(MlaRow row, std::int32_t S, std::size_t blocks) {
    const auto stride = static_cast<std::int64_t>(bytes_of(row));
    kv = {nullptr, S * stride + 16, stride, S, row};
    bytes.assign(blocks * static_cast<std::size_t>(kv.block_stride), std::byte{0xff});
    kv.base = bytes.data();
  }
  Cache(const Cache&) = delete;

  std::vector<std::byte> bytes;
  PagedLatents kv;
};

TEST(MlaWriteCuda, WritesTheBytesOfTheReference) {
  constexpr std::int32_t kTokens = 6;
  for (const MlaRow row : kRows)
    for (const Dtype dtype : kActivations) {
      std::vector<std::byte> latent = numbers(kTokens * kMlaLatent, dtype, 1);
      const std::vector<std::byte> rope = numbers(kTokens * kMlaRope, dtype, 2);
      std::fill_n(latent.begin(), 128 * bytes_of(dtype), std::byte{0});  // makes the scale 1
      store_element(&latent[200 * bytes_of(dtype)], dtype, std::nanf(""));
      const std::vector<std::int64_t> slots = {3, 0, -1, 11, 7, 4};
      Cache want(row, 4, 3);
      MlaWriteArgs args{latent.data(), rope.data(), slots.data(), want.kv, kTokens, dtype};
      mla_write_reference(args);
      in_every_schedule([&] {
        Cache got(row, 4, 3);
        args.kv = got.kv;
        EXPECT_TRUE(mla_write_cuda(args, nullptr).has_value());
        EXPECT_EQ(got.bytes, want.bytes);
      });
    }
}

struct Sequence {
  std::int32_t kv_len, q_len;
};

/// Some sequences, each in blocks of its own, and their queries.
class Batch {
 public:
  Batch(MlaRow row, std::int32_t H, std::int32_t S, Dtype q_dtype, std::vector<Sequence> sequences)
      : sequences_(std::move(sequences)), cache_(row, S, sequences_.size() * kBlocks) {
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      std::vector<std::int64_t> slots;
      for (std::int32_t i = 0; i < kBlocks; ++i)  // blocks in reverse order
        table_.push_back(BlockId{static_cast<std::uint32_t>((sequences_.size() - b) * kBlocks) - 1 -
                                 static_cast<std::uint32_t>(i)});
      for (std::int32_t t = 0; t < sequences_[b].kv_len; ++t)
        slots.push_back(
            std::int64_t{table_[b * kBlocks + static_cast<std::size_t>(t / S)].value} * S + t % S);
      const std::vector<std::byte> latent = numbers(slots.size() * kMlaLatent, Dtype::f32, 5);
      const std::vector<std::byte> rope = numbers(slots.size() * kMlaRope, Dtype::f32, 6);
      mla_write_reference(
          {latent.data(), rope.data(), slots.data(), cache_.kv, sequences_[b].kv_len, Dtype::f32});
      query_start_.push_back(query_start_.back() + sequences_[b].q_len);
      kv_len_.push_back(sequences_[b].kv_len);
    }
    const auto rows = static_cast<std::size_t>(query_start_.back() * H);
    q_ = numbers(rows * kMlaRow, q_dtype, 7);
    args_ = {q_.data(),
             cache_.kv,
             table_.data(),
             query_start_.data(),
             kv_len_.data(),
             nullptr,
             nullptr,
             static_cast<std::int32_t>(sequences_.size()),
             H,
             kBlocks,
             q_dtype,
             0.05f};
  }
  Batch(const Batch&) = delete;

  struct Result {
    std::vector<float> out, lse;
  };

  template <class Run>
  Result result_of(PagedMlaArgs args, const Run& run) const {
    const auto rows = static_cast<std::size_t>(args.query_start[args.B] * args.H);
    const std::size_t element = bytes_of(args.q_dtype);
    std::vector<std::byte> out(rows * kMlaLatent * element, std::byte{0xff});
    Result result{{}, std::vector<float>(rows, std::nanf(""))};
    args.out = out.data();
    args.lse = result.lse.data();
    run(args);
    for (std::size_t i = 0; i < rows * kMlaLatent; ++i)
      result.out.push_back(load_element(&out[i * element], args.q_dtype));
    return result;
  }
  Result truth() const { return result_of(args_, paged_mla_reference); }
  Result run() const { return result_of(args_, run_cuda); }
  /// Decodes one token in a call of its own.
  Result run_token(std::size_t b, std::int32_t i) const {
    const std::int32_t query_start[] = {0, 1};
    const std::int32_t kv_len = sequences_[b].kv_len - sequences_[b].q_len + i + 1;
    PagedMlaArgs args = args_;
    args.q = q_.data() + static_cast<std::size_t>((query_start_[b] + i) * args.H * kMlaRow) *
                             bytes_of(args.q_dtype);
    args.block_table += b * kBlocks;
    args.query_start = query_start;
    args.kv_len = &kv_len;
    args.B = 1;
    return result_of(args, run_cuda);
  }
  const PagedMlaArgs& args() const { return args_; }

 private:
  static constexpr std::int32_t kBlocks = 24;  ///< of a sequence

  static void run_cuda(const PagedMlaArgs& args) {
    const SplitPlan plan = plan_splits(args);
    std::vector<float> states(plan.state_floats(args.H, kMlaLatent), std::nanf(""));
    const Expected<void> done = paged_mla_cuda(args, plan.work(states.data()), nullptr);
    EXPECT_TRUE(done.has_value()) << done.error().text;
  }

  std::vector<Sequence> sequences_;
  Cache cache_;
  std::vector<BlockId> table_;
  std::vector<std::int32_t> query_start_{0}, kv_len_;
  std::vector<std::byte> q_;
  PagedMlaArgs args_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(PagedMlaCuda, IsRightAndTheSameInEverySchedule) {
  std::int32_t number = 0;
  for (const MlaRow row : kRows)
    for (const Dtype q_dtype : kActivations)
      for (const std::int32_t H : {1, 9, 16}) {
        SCOPED_TRACE(++number);
        const Batch batch(row, H, number % 2 == 0 ? 16 : 12, q_dtype,
                          {{150, 1}, {0, 0}, {1, 1}, {9, 2}});
        const Batch::Result got = batch.run(), want = batch.truth();
        // With bf16 queries it runs on tensor cores, which round the weights.
        const double tolerance = q_dtype == Dtype::bf16  ? 4e-3
                                 : q_dtype == Dtype::f16 ? 5e-4
                                                         : 1e-5;
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          double error = 0, norm = 0;
          for (std::size_t d = i * kMlaLatent; d < (i + 1) * kMlaLatent; ++d) {
            error += std::pow(double{got.out[d]} - want.out[d], 2);
            norm += std::pow(double{want.out[d]}, 2);
          }
          EXPECT_LE(std::sqrt(error / norm), tolerance) << i;
          EXPECT_NEAR(got.lse[i], want.lse[i], 2e-4) << i;
        }
        in_every_schedule([&] {
          const Batch::Result again = batch.run();
          EXPECT_TRUE(same_bits(again.out, got.out));
          EXPECT_TRUE(same_bits(again.lse, got.lse));
        });
      }
}

TEST(PagedMlaCuda, ATokensBitsDoNotDependOnTheBatch) {
  for (const MlaRow row : kRows) {
    const std::vector<Sequence> sequences = {{150, 3}, {17, 17}, {64, 1}, {200, 1}};
    const Batch batch(row, 16, 16, Dtype::bf16, sequences);
    Batch::Result alone;
    for (std::size_t b = 0; b < sequences.size(); ++b)
      for (std::int32_t i = 0; i < sequences[b].q_len; ++i) {
        const Batch::Result token = batch.run_token(b, i);
        alone.out.insert(alone.out.end(), token.out.begin(), token.out.end());
        alone.lse.insert(alone.lse.end(), token.lse.begin(), token.lse.end());
      }
    const Batch::Result together = batch.run();
    EXPECT_TRUE(same_bits(together.out, alone.out));
    EXPECT_TRUE(same_bits(together.lse, alone.lse));
  }
}

TEST(PagedMlaCuda, RefusesWhatItCannotDo) {
  const Batch batch(MlaRow::fp8, 4, 16, Dtype::bf16, {{20, 1}, {200, 1}});
  const SplitPlan plan = plan_splits(batch.args());
  const std::uint64_t before = simt::statistics().blocks;
  PagedMlaArgs args = batch.args();
  EXPECT_FALSE(paged_mla_cuda(args, plan.work(nullptr), nullptr).has_value());
  std::vector<float> states(plan.state_floats(4, kMlaLatent));
  args.q_dtype = Dtype::int8;
  EXPECT_FALSE(paged_mla_cuda(args, plan.work(states.data()), nullptr).has_value());
  args = batch.args();
  args.kv.token_stride += 4;
  EXPECT_FALSE(paged_mla_cuda(args, plan.work(states.data()), nullptr).has_value());
  MlaWriteArgs write;
  write.kv = args.kv;
  write.T = 1;
  EXPECT_FALSE(mla_write_cuda(write, nullptr).has_value());
  EXPECT_EQ(simt::statistics().blocks, before);
}

}  // namespace
}  // namespace kvhive
