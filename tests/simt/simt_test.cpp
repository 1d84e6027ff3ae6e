#include "kernels/simt/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/simt/sample_run.hpp"

namespace kvhive {
namespace {

using samples::Bug;
using testing::AllOf;
using testing::HasSubstr;

/// Restores the emulator's options.
class Simt : public testing::Test {
 protected:
  ~Simt() override { simt::options = before_; }

 private:
  simt::Options before_ = simt::options;
};

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const simt::Error& error) {
    return error.what();
  }
  return "";
}

const std::vector<simt::Options>& all_schedules() {
  static const std::vector<simt::Options> schedules = [] {
    std::vector<simt::Options> all;
    for (const auto order : {simt::Order::forward, simt::Order::reverse, simt::Order::random})
      for (const auto delivery :
           {simt::Delivery::late, simt::Delivery::early, simt::Delivery::random})
        for (const unsigned workers : {1u, 2u})
          all.push_back({.order = order, .delivery = delivery, .seed = 7, .workers = workers});
    return all;
  }();
  return schedules;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(Simt, CorrectKernelsGiveTheSameBitsInEverySchedule) {
  for (const auto kernel :
       {samples::run_pass_around, samples::run_copy_async, samples::run_multiply}) {
    simt::options = {};
    const std::vector<float> first = kernel(Bug::none);
    EXPECT_TRUE(std::none_of(first.begin(), first.end(), [](float x) { return std::isnan(x); }));
    for (const simt::Options& schedule : all_schedules()) {
      simt::options = schedule;
      EXPECT_TRUE(same_bits(kernel(Bug::none), first));
    }
  }
}

TEST_F(Simt, AMissingBarrierShowsInSomeSchedule) {
  const std::vector<float> right = samples::run_pass_around(Bug::none);
  bool is_seen = false;
  for (const simt::Options& schedule : all_schedules()) {
    simt::options = schedule;
    is_seen |= !same_bits(samples::run_pass_around(Bug::missing_syncthreads), right);
  }
  EXPECT_TRUE(is_seen);
}

TEST_F(Simt, AMissingCopyWaitShowsWhenCopiesAreLate) {
  const std::vector<float> right = samples::run_copy_async(Bug::none);
  simt::options.delivery = simt::Delivery::late;
  EXPECT_FALSE(same_bits(samples::run_copy_async(Bug::missing_copy_wait), right));
  simt::options.delivery = simt::Delivery::early;
  EXPECT_TRUE(same_bits(samples::run_copy_async(Bug::missing_copy_wait), right));
}

TEST_F(Simt, MultipliesAsThePlainProductDoes) {
  const std::vector<float> d = samples::run_multiply(Bug::none);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += static_cast<float>((row * 16 + k) % 13 - 6) *
               static_cast<float>((column * 16 + k) % 7 - 3);
      EXPECT_EQ(d[static_cast<std::size_t>(row * 8 + column)], sum) << row << ' ' << column;
    }
}

__global__ void transpose(const std::uint16_t* in, std::uint32_t* out) {
  auto* rows = reinterpret_cast<std::uint16_t*>(device::shared_memory());  // [32][8]
  const unsigned lane = threadIdx.x;
  for (unsigned i = 0; i < 8; ++i) rows[lane * 8 + i] = in[lane * 8 + i];
  __syncwarp();
  std::uint32_t fragment[4];
  device::load_matrices_transposed(fragment, rows + lane * 8);
  for (unsigned m = 0; m < 4; ++m) out[lane * 4 + m] = fragment[m];
}

TEST_F(Simt, LdmatrixTransposesEachMatrix) {
  std::vector<std::uint16_t> in(256);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint32_t> out(128);
  simt::launch(transpose, {1}, {32}, 512, in.data(), out.data());
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned m = 0; m < 4; ++m) {
      const unsigned column = lane / 4, row = lane % 4 * 2;  // PTX: elements (row, row + 1) of it
      EXPECT_EQ(out[lane * 4 + m] & 0xffff, m * 64 + row * 8 + column);
      EXPECT_EQ(out[lane * 4 + m] >> 16, m * 64 + (row + 1) * 8 + column);
    }
}

__global__ void shuffle_all(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* mine = out + 7 * lane;
  mine[0] = __shfl_sync(~0u, lane, 3, 8);
  mine[1] = __shfl_xor_sync(~0u, lane, 5);
  mine[2] = __shfl_down_sync(~0u, lane, 2, 16);
  mine[3] = __shfl_up_sync(~0u, lane, 2, 16);
  mine[4] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  mine[5] = __any_sync(~0u, lane == 31);
  mine[6] = __all_sync(~0u, lane < 31);
}

TEST_F(Simt, WarpOperationsMeanWhatTheyDoInCuda) {
  std::vector<int> out(7 * 32);
  simt::launch(shuffle_all, {1}, {32}, 0, out.data());
  int thirds = 0;
  for (int lane = 0; lane < 32; lane += 3) thirds |= 1 << lane;
  for (int lane = 0; lane < 32; ++lane) {
    const int* mine = &out[static_cast<std::size_t>(7 * lane)];
    EXPECT_EQ(mine[0], lane / 8 * 8 + 3);
    EXPECT_EQ(mine[1], lane ^ 5);
    EXPECT_EQ(mine[2], lane % 16 + 2 < 16 ? lane + 2 : lane);
    EXPECT_EQ(mine[3], lane % 16 >= 2 ? lane - 2 : lane);
    EXPECT_EQ(mine[4], thirds);
    EXPECT_EQ(mine[5], 1);
    EXPECT_EQ(mine[6], 0);
  }
}

__global__ void half_masks(int* out) {
  const unsigned lane = threadIdx.x;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = static_cast<int>(lane);
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(mask, sum, distance);
  out[lane] = sum;
}

TEST_F(Simt, PartsOfAWarpMeetUnderMasksOfTheirOwn) {
  for (const simt::Options& schedule : all_schedules()) {
    simt::options = schedule;
    std::vector<int> out(32);
    simt::launch(half_masks, {1}, {32}, 0, out.data());
    EXPECT_EQ(out[0], 15 * 16 / 2);
    EXPECT_EQ(out[31], 15 * 16 / 2 + 16 * 16);
  }
}

__global__ void count_all(unsigned* count, unsigned* largest, unsigned* order) {
  const unsigned id = blockIdx.x * blockDim.x + threadIdx.x;
  order[atomicAdd(count, 1u)] = id;
  atomicMax(largest, id);
}

TEST_F(Simt, OrdersDifferAndAtomicsCountEveryThread) {
  std::vector<std::vector<unsigned>> orders;
  for (const auto order : {simt::Order::forward, simt::Order::reverse, simt::Order::random}) {
    simt::options.order = order;
    unsigned count = 0, largest = 0;
    std::vector<unsigned> seen(4 * 64);
    simt::launch(count_all, {4}, {64}, 0, &count, &largest, seen.data());
    EXPECT_EQ(count, 4u * 64);
    EXPECT_EQ(largest, 4u * 64 - 1);
    orders.push_back(seen);
  }
  EXPECT_TRUE(std::is_sorted(orders[0].begin(), orders[0].end()));
  EXPECT_TRUE(std::is_sorted(orders[1].rbegin(), orders[1].rend()));
  EXPECT_NE(orders[2], orders[0]);
  std::sort(orders[2].begin(), orders[2].end());
  EXPECT_EQ(orders[2], orders[0]);
}

__global__ void read_unwritten(std::uint32_t* out) {
  out[threadIdx.x] = reinterpret_cast<const std::uint32_t*>(device::shared_memory())[threadIdx.x];
}

TEST_F(Simt, SharedMemoryStartsAsPoison) {
  std::vector<std::uint32_t> out(32);
  simt::launch(read_unwritten, {1}, {32}, 128, out.data());
  for (const std::uint32_t word : out) EXPECT_EQ(word, 0xcbcbcbcbu);
}

__global__ void wait_for_ever() {
  if (threadIdx.x == 32) __syncwarp(0x3u);  // thread 33 does not come
  __syncthreads();
}

TEST_F(Simt, ADeadlockReportNamesThreadsAndLines) {
  const std::string error = error_of([] { simt::launch(wait_for_ever, {1}, {96}, 0); });
  EXPECT_THAT(error, AllOf(HasSubstr("threads wait for ever"), HasSubstr("thread (0,0,0)"),
                           HasSubstr("thread (32,0,0)"), HasSubstr("simt_test.cpp:")));
}

__global__ void never_wait(const float* in) {
  device::copy_async<16>(device::shared_memory(), in, true);
  device::commit_copies();
}

TEST_F(Simt, ACopyWithoutAWaitIsAnError) {
  const std::vector<float> in(4);
  EXPECT_THAT(error_of([&] { simt::launch(never_wait, {1}, {1}, 16, in.data()); }),
              HasSubstr("without having waited"));
}

__global__ void idle() {}

TEST_F(Simt, ImpossibleLaunchesAreRefused) {
  EXPECT_THAT(error_of([] { simt::launch(idle, {0}, {32}, 0); }), HasSubstr("invalid launch"));
  EXPECT_THAT(error_of([] { simt::launch(idle, {1}, {1025}, 0); }), HasSubstr("1025 threads"));
  EXPECT_THAT(error_of([] { simt::launch(idle, {1, 65536}, {32}, 0); }), HasSubstr("65536"));
  EXPECT_THAT(error_of([] { simt::launch(idle, {1}, {32}, (227 << 10) + 1); }),
              HasSubstr("232449 bytes of shared memory"));
  EXPECT_EQ(error_of([] { simt::launch(idle, {1}, {1024}, 227 << 10); }), "");
}

TEST_F(Simt, TheNextLaunchIsFineAfterAFailedOne) {
  EXPECT_NE(error_of([] { samples::run_pass_around(Bug::divergent_barrier); }), "");
  const std::vector<float> out = samples::run_pass_around(Bug::none);
  EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
}

TEST_F(Simt, CountsBlocksBarriersAndWarpOperations) {
  const simt::Statistics before = simt::statistics();
  samples::run_pass_around(Bug::none);
  const simt::Statistics after = simt::statistics();
  EXPECT_EQ(after.blocks - before.blocks, 3u);
  EXPECT_EQ(after.barriers - before.barriers, 3u);
  EXPECT_EQ(after.warp_operations - before.warp_operations, 3u * samples::kThreads);
}

}  // namespace
}  // namespace kvhive
