// The two properties for which tests use the fake device: it works as late as possible, and it
// fails when asked to.

#include "tests/device/fake_device.hpp"

#include <gmock/gmock.h>

#include <future>
#include <vector>

#include "device/device_memory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;

constexpr std::size_t kBytes = 4096;

class FakeDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    stream_ = *device_.create_stream();
    done_ = *device_.create_event();
    memory_ = *device_.allocate(kBytes);
    ASSERT_TRUE(device_.lock_pages(host_.data(), kBytes));
  }
  Expected<void> finish() {
    if (auto recorded = device_.record(done_, stream_); !recorded) return recorded;
    return device_.synchronize(done_);
  }

  // Declared before the device, whose destructor ends its streams: work that a test has not waited
  // for reads it.
  std::vector<std::byte> host_ = std::vector<std::byte>(kBytes, std::byte{1});
  FakeDevice device_;
  DeviceStream stream_ = nullptr;
  DeviceEvent done_ = nullptr;
  std::byte* memory_ = nullptr;
};

TEST_F(FakeDeviceTest, CopiesReadPageLockedMemoryWhenTheStreamReachesThem) {
  std::promise<void> changed;
  FakeFaults faults;
  faults.before_work = [&, is_changed = changed.get_future().share()](std::uint64_t) {
    is_changed.wait();
  };
  device_.set_faults(faults);
  ASSERT_TRUE(device_.copy(memory_, host_.data(), kBytes, stream_));
  // An error on any device: the host changes the source before the copy is done.
  std::fill(host_.begin(), host_.end(), std::byte{2});
  changed.set_value();
  std::vector<std::byte> got(kBytes);
  ASSERT_TRUE(device_.copy(got.data(), memory_, kBytes, stream_));
  EXPECT_THAT(got, Each(std::byte{2}));
}

TEST_F(FakeDeviceTest, FreshMemoryIsPoisoned) {
  std::vector<std::byte> got(kBytes);
  ASSERT_TRUE(device_.copy(got.data(), memory_, kBytes, stream_));
  EXPECT_THAT(got, Each(std::byte{0xcb}));
}

TEST_F(FakeDeviceTest, AFailedCallLosesTheContextForEver) {
  FakeFaults faults;
  faults.call = device_.calls() + 1;
  device_.set_faults(faults);
  EXPECT_EQ(device_.fill(memory_, std::byte{1}, kBytes, stream_).error().code, Errc::device_lost);
  EXPECT_EQ(finish().error().code, Errc::device_lost);
  EXPECT_EQ(device_.allocate(kBytes).error().code, Errc::device_lost);
}

TEST_F(FakeDeviceTest, FullMemoryDoesNotLoseTheContext) {
  FakeFaults faults;
  faults.call = device_.calls() + 1;
  faults.error = Errc::out_of_memory;
  device_.set_faults(faults);
  EXPECT_EQ(device_.allocate(kBytes).error().code, Errc::out_of_memory);
  EXPECT_TRUE(finish());
}

TEST_F(FakeDeviceTest, AFaultOnAStreamIsReportedByTheNextWait) {
  ASSERT_TRUE(device_.fill(memory_, std::byte{1}, kBytes, stream_));
  ASSERT_TRUE(finish());
  FakeFaults faults;
  faults.work = device_.works() + 1;
  device_.set_faults(faults);
  EXPECT_TRUE(device_.copy(host_.data(), memory_, kBytes, stream_));
  EXPECT_EQ(finish().error().code, Errc::device_lost);
}

TEST_F(FakeDeviceTest, RefusesMemoryThatIsNotOnTheDevice) {
  std::vector<std::byte> elsewhere(kBytes);
  EXPECT_FALSE(device_.fill(elsewhere.data(), std::byte{1}, kBytes, stream_));
  EXPECT_FALSE(device_.fill(memory_ + 1, std::byte{1}, kBytes, stream_));
  EXPECT_FALSE(device_.copy(elsewhere.data(), host_.data(), kBytes, stream_));
}

/// CUDA does not copy across the border of two registrations either.
TEST_F(FakeDeviceTest, ACopyOverTheBorderOfPageLockedMemoryIsRefused) {
  device_.unlock_pages(host_.data());
  ASSERT_TRUE(device_.lock_pages(host_.data(), kBytes / 2));
  ASSERT_TRUE(device_.lock_pages(host_.data() + kBytes / 2, kBytes / 2));
  EXPECT_TRUE(device_.copy(memory_, host_.data(), kBytes / 2, stream_));
  EXPECT_FALSE(device_.copy(memory_, host_.data(), kBytes, stream_));
  device_.unlock_pages(host_.data() + kBytes / 2);
}

TEST_F(FakeDeviceTest, AStreamWorksAgainWhenItsRecordingHasFailed) {
  ASSERT_TRUE(device_.begin_capture(stream_));
  ASSERT_TRUE(device_.fill(memory_, std::byte{1}, kBytes, stream_));
  FakeFaults faults;
  faults.call = device_.calls() + 1;
  faults.error = Errc::out_of_memory;
  device_.set_faults(faults);
  EXPECT_FALSE(device_.end_capture(stream_));
  EXPECT_TRUE(finish());
}

TEST(LockedPages, ChunksAreWholeUnitsAndPages) {
  for (const std::size_t unit : {1ul, 64ul, 4096ul, 917'504ul, 2ul << 20, (64ul << 30) + 4096}) {
    const std::size_t chunk = LockedPages::chunk_bytes(unit);
    EXPECT_EQ(chunk % unit, 0u) << unit;
    EXPECT_EQ(chunk % 4096, 0u) << unit;
    if (unit > 2ul << 20) continue;
    EXPECT_LE(chunk, 64ul << 30) << unit;
    EXPECT_GT(chunk, 63ul << 30) << unit;
  }
}

TEST_F(FakeDeviceTest, CountsResourcesThatAreNotReleased) {
  EXPECT_EQ(device_.leftovers(), 4u);
  device_.unlock_pages(host_.data());
  device_.release(memory_);
  device_.destroy(done_);
  device_.destroy(stream_);
  EXPECT_EQ(device_.leftovers(), 0u);
}

}  // namespace
}  // namespace kvhive::testing
