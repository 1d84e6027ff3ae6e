#include "actors/gpu/copy_calibration.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "tests/actors/gpu/device_engine.hpp"

namespace kvhive::testing {
namespace {

TEST(CopyCalibration, TheKernelHasToBeClearlyFaster) {
  EXPECT_TRUE(kernel_pays({1, 1}, {2, 2}));
  EXPECT_TRUE(kernel_pays({1.5, 0.5}, {1.1, 1.2}));  // the sum over both directions decides
  EXPECT_FALSE(kernel_pays({1, 1}, {1.05, 1.05}));
  EXPECT_FALSE(kernel_pays({1, 1}, {1, 1}));
  EXPECT_FALSE(kernel_pays({1, 2}, {2, 1}));
  EXPECT_FALSE(kernel_pays({2, 2}, {1, 1}));
}

/// Copies that take as long as on slow hardware, without waiting for real.
CopyOnDevice slow(int* calls) {
  return [calls, copy = late_copies()](const BlockCopyArgs& args, DeviceStream stream) {
    ++*calls;
    stream->enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
    return copy(args, stream);
  };
}
CopyOnDevice counted(int* calls) {
  return [calls, copy = late_copies()](const BlockCopyArgs& args, DeviceStream stream) {
    ++*calls;
    return copy(args, stream);
  };
}

TEST(CopyCalibration, PicksTheFasterWayOnThisDevice) {
  FakeDevice device;
  int kernel_calls = 0, batch_calls = 0;
  EXPECT_EQ(*calibrate_copies(device, 4096, counted(&kernel_calls), slow(&batch_calls)), 1u << 20);
  EXPECT_EQ(*calibrate_copies(device, 4096, slow(&kernel_calls), counted(&batch_calls)), 0u);
  EXPECT_GT(kernel_calls, 0);
  EXPECT_EQ(kernel_calls, batch_calls);
  EXPECT_EQ(device.leftovers(), 0u);
}

TEST(CopyCalibration, LargePiecesUseTheCopyEnginesWithoutMeasurement) {
  FakeDevice device;
  int calls = 0;
  EXPECT_EQ(*calibrate_copies(device, 1 << 20, counted(&calls), slow(&calls)), 0u);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(device.calls(), 0u);
}

/// Every copy is inside its memory and uses every piece once. Adjacent pieces are seldom copied one
/// after the other.
TEST(CopyCalibration, CopiesScatteredPiecesBothWays) {
  for (const std::size_t piece : {16, 32 << 10, (1 << 20) - 16}) {
    FakeDevice device;
    int out = 0, in = 0;
    const CopyOnDevice copy = [&](const BlockCopyArgs& args, DeviceStream stream) {
      EXPECT_EQ(args.bytes, piece);
      EXPECT_LE(args.pairs_count * piece, 8u << 20);
      EXPECT_GE(args.pairs_count, 8u);
      // Tells the directions apart: the device's memory can be filled, the host's cannot.
      (device.fill(args.destination, std::byte{1}, 1, stream) ? in : out) += 1;
      std::set<std::uint32_t> sources, destinations;
      std::size_t neighbours = 0;
      for (std::size_t i = 0; i < args.pairs_count; ++i) {
        EXPECT_TRUE(sources.insert(args.pairs[i].source).second);
        EXPECT_TRUE(destinations.insert(args.pairs[i].destination).second);
        neighbours += i != 0 && args.pairs[i].source == args.pairs[i - 1].source + 1 &&
                      args.pairs[i].destination == args.pairs[i - 1].destination + 1;
      }
      EXPECT_LT(neighbours, args.pairs_count / 8 + 1);
      EXPECT_LT(*sources.rbegin(), args.pairs_count);
      EXPECT_LT(*destinations.rbegin(), args.pairs_count);
      return plain_copies(device)(args, stream);
    };
    ASSERT_TRUE(calibrate_copies(device, piece, copy, copy));
    EXPECT_GT(out, 0);
    EXPECT_EQ(out, in);
  }
}

/// Every call fails once; no failure leaves anything allocated.
TEST(CopyCalibration, ReportsADeviceThatFails) {
  constexpr std::size_t kPiece = (1 << 20) - 16;
  std::uint64_t calls = 0;
  {
    FakeDevice device;
    ASSERT_TRUE(calibrate_copies(device, kPiece, plain_copies(device), plain_copies(device)));
    calls = device.calls();
  }
  for (std::uint64_t call = 1; call <= calls; ++call) {
    FakeDevice device;
    FakeFaults faults;
    faults.call = call;
    device.set_faults(faults);
    const auto failed =
        calibrate_copies(device, kPiece, plain_copies(device), plain_copies(device));
    ASSERT_FALSE(failed) << call;
    EXPECT_EQ(failed.error().code, Errc::device_lost);
    EXPECT_EQ(device.leftovers(), 0u) << call;
  }
}

}  // namespace
}  // namespace kvhive::testing
