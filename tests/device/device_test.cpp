// The contract of device/device.hpp, tested on the fake device and, where there is one, on a GPU.

#include "device/device.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/element.hpp"
#include "tests/device/fake_device.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/descriptor_line.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Each;

struct Make {
  const char* name;
  Expected<std::unique_ptr<Device>> (*open)();
};

void PrintTo(const Make& make, std::ostream* out) { *out << make.name; }

Expected<std::unique_ptr<Device>> open_fake() { return std::make_unique<FakeDevice>(); }
Expected<std::unique_ptr<Device>> open_fake_by_ipc() {
  DeviceFacts facts = fake_facts();
  facts.memory_needs_its_maker = true;
  return std::make_unique<FakeDevice>(facts);
}
Expected<std::unique_ptr<Device>> open_cuda() { return open_cuda_device(0, GpuMemorySharing::vmm); }
Expected<std::unique_ptr<Device>> open_cuda_by_ipc() {
  return open_cuda_device(0, GpuMemorySharing::ipc);
}

class DeviceContract : public ::testing::TestWithParam<Make> {
 protected:
  /// Call it only after all forks: a CUDA context does not survive them.
  void open() {
    auto opened = GetParam().open();
    if (!opened) GTEST_SKIP() << opened.error().text;
    device_ = std::move(*opened);
    stream_ = *device_->create_stream();
    done_ = *device_->create_event();
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    device_->destroy(done_);
    device_->destroy(stream_);
  }
  void finish() {
    ASSERT_TRUE(device_->record(done_, stream_));
    ASSERT_TRUE(device_->synchronize(done_));
  }
  std::vector<std::byte> read(const std::byte* from, std::size_t bytes) {
    std::vector<std::byte> got(bytes);
    EXPECT_TRUE(device_->copy(got.data(), from, bytes, stream_));
    finish();
    return got;
  }

  std::unique_ptr<Device> device_;
  DeviceStream stream_ = nullptr;
  DeviceEvent done_ = nullptr;
};

#define OPEN_OR_SKIP() \
  open();              \
  if (device_ == nullptr) return

TEST_P(DeviceContract, ReportsItsFacts) {
  OPEN_OR_SKIP();
  const DeviceFacts& facts = device_->facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.uuid.rfind("GPU-", 0), 0u);
  EXPECT_GE(facts.major, 8);
  EXPECT_GT(facts.shared_granularity, 0u);
  const auto before = device_->free_bytes();
  ASSERT_TRUE(before) << before.error().text;
  EXPECT_LE(*before, facts.total_bytes);
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::byte* memory = *device_->allocate(kBytes);
  EXPECT_LE(*device_->free_bytes(), *before - kBytes / 2);
  device_->release(memory);
}

TEST_P(DeviceContract, CopiesFollowEachOtherInAStream) {
  OPEN_OR_SKIP();
  constexpr std::size_t kBytes = 1 << 16;
  std::byte* one = *device_->allocate(kBytes);
  std::byte* other = *device_->allocate(kBytes);
  ASSERT_TRUE(device_->fill(one, std::byte{1}, kBytes, stream_));
  ASSERT_TRUE(device_->copy(other, one, kBytes, stream_));
  ASSERT_TRUE(device_->fill(one, std::byte{2}, kBytes, stream_));
  EXPECT_THAT(read(other, kBytes), Each(std::byte{1}));
  EXPECT_THAT(read(one, kBytes), Each(std::byte{2}));
  device_->release(one);
  device_->release(other);
}

TEST_P(DeviceContract, HostMemoryThatIsNotPageLockedMayBeReusedAtOnce) {
  OPEN_OR_SKIP();
  constexpr std::size_t kBytes = 1 << 16;
  std::byte* memory = *device_->allocate(kBytes);
  std::vector<std::byte> host(kBytes, std::byte{7});
  ASSERT_TRUE(device_->copy(memory, host.data(), kBytes, stream_));
  std::fill(host.begin(), host.end(), std::byte{8});
  EXPECT_THAT(read(memory, kBytes), Each(std::byte{7}));
  device_->release(memory);
}

TEST_P(DeviceContract, AStreamWaitsForAnothersEvent) {
  OPEN_OR_SKIP();
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  std::byte* memory = *device_->allocate(kBytes);
  const DeviceStream other = *device_->create_stream();
  for (int round = 1; round <= 20; ++round) {
    ASSERT_TRUE(device_->fill(memory, std::byte(round), kBytes, stream_));
    ASSERT_TRUE(device_->record(done_, stream_));
    ASSERT_TRUE(device_->wait(other, done_));
    std::vector<std::byte> seen(1);
    ASSERT_TRUE(device_->copy(seen.data(), memory + kBytes - 1, 1, other));
    ASSERT_TRUE(device_->record(done_, other));
    ASSERT_TRUE(device_->synchronize(done_));
    EXPECT_EQ(seen[0], std::byte(round));
  }
  device_->destroy(other);
  device_->release(memory);
}

TEST_P(DeviceContract, PageLockedMemoryIsLockedOnce) {
  OPEN_OR_SKIP();
  constexpr std::size_t kBytes = 1 << 16;
  auto* host = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
  ASSERT_TRUE(device_->lock_pages(host, kBytes));
  const auto again = device_->lock_pages(host, kBytes);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::os_error);  // and the device still works
  std::byte* memory = *device_->allocate(kBytes);
  std::memset(host, 3, kBytes);
  ASSERT_TRUE(device_->copy(memory, host, kBytes, stream_));
  EXPECT_THAT(read(memory, kBytes), Each(std::byte{3}));
  device_->release(memory);
  device_->unlock_pages(host);
  std::free(host);
}

TEST_P(DeviceContract, RefusesTooMuchMemoryAndGoesOn) {
  OPEN_OR_SKIP();
  const std::size_t unit = device_->facts().shared_granularity;
  const std::size_t bytes = (device_->facts().total_bytes / unit + 1) * unit;
  const auto refused = device_->create_shared(bytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::out_of_memory) << refused.error().text;
  EXPECT_TRUE(device_->create_shared(unit));
}

TEST_P(DeviceContract, GraphsRepeatTheirWork) {
  OPEN_OR_SKIP();
  constexpr std::size_t kBytes = 1 << 16;
  std::byte* from = *device_->allocate(kBytes);
  std::byte* to = *device_->allocate(kBytes);
  ASSERT_TRUE(device_->fill(to, std::byte{9}, kBytes, stream_));
  ASSERT_TRUE(device_->begin_capture(stream_));
  ASSERT_TRUE(device_->copy(to, from, kBytes, stream_));
  const auto graph = device_->end_capture(stream_);
  ASSERT_TRUE(graph) << graph.error().text;
  EXPECT_THAT(read(to, kBytes), Each(std::byte{9}));  // recorded work is not done yet
  for (const std::byte value : {std::byte{1}, std::byte{2}}) {
    ASSERT_TRUE(device_->fill(from, value, kBytes, stream_));
    ASSERT_TRUE(device_->launch(*graph, stream_));
    EXPECT_THAT(read(to, kBytes), Each(value));
  }
  device_->destroy(*graph);
  device_->release(from);
  device_->release(to);
}

/// Compares with a sum in double precision, for every type, with and without a bias.
TEST_P(DeviceContract, Multiplies) {
  OPEN_OR_SKIP();
  constexpr std::int32_t T = 5, N = 24, K = 48;
  std::mt19937 random(3);
  std::normal_distribution<float> values;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
    for (const Dtype out_dtype : {dtype, Dtype::f32})
      for (const bool has_bias : {false, true}) {
        const std::size_t in = bytes_of(dtype), out = bytes_of(out_dtype);
        std::vector<std::byte> host((T * K + N * K) * in + N * out);
        std::byte* const host_bias = host.data() + (T * K + N * K) * in;
        for (std::size_t i = 0; i < T * K + N * K; ++i)
          store_element(host.data(), i, values(random), dtype);
        for (std::size_t i = 0; i < N; ++i) store_element(host_bias, i, values(random), out_dtype);
        std::byte* inputs = *device_->allocate(host.size());
        std::byte* y = *device_->allocate(T * N * out);
        ASSERT_TRUE(device_->copy(inputs, host.data(), host.size(), stream_));
        const std::byte* w = inputs + T * K * in;
        const std::byte* bias = w + N * K * in;
        const auto done = device_->multiply({.x = inputs,
                                             .w = w,
                                             .bias = has_bias ? bias : nullptr,
                                             .y = y,
                                             .T = T,
                                             .N = N,
                                             .K = K,
                                             .dtype = dtype,
                                             .out_dtype = out_dtype},
                                            stream_);
        ASSERT_TRUE(done) << done.error().text;
        const auto got = read(y, T * N * out);
        for (std::int32_t t = 0; t < T; ++t)
          for (std::int32_t n = 0; n < N; ++n) {
            double sum = has_bias ? load_element(host_bias, n, out_dtype) : 0;
            for (std::int32_t k = 0; k < K; ++k)
              sum += double{load_element(host.data(), t * K + k, dtype)} *
                     load_element(host.data(), T * K + n * K + k, dtype);
            const double rounding = out_dtype == Dtype::bf16  ? 0x1p-8
                                    : out_dtype == Dtype::f16 ? 0x1p-11
                                                              : 0x1p-20;
            EXPECT_NEAR(load_element(got.data(), t * N + n, out_dtype), sum,
                        rounding * (std::abs(sum) + 8));
          }
        device_->release(inputs);
        device_->release(y);
      }
}

/// Makes shared memory, fills it with 42s and sends its descriptor; then waits until the other end
/// closes.
void make_shared_memory(const Make& make, const DescriptorLine& line) {
  auto device = make.open();
  if (!device) {
    DescriptorLine::send(line.child(), 0);
    return;
  }
  const std::size_t bytes = (*device)->facts().shared_granularity;
  const UniqueFd fd = *(*device)->create_shared(bytes);
  std::byte* memory = *(*device)->map_shared(fd.get(), bytes);
  const DeviceStream stream = *(*device)->create_stream();
  const DeviceEvent event = *(*device)->create_event();
  KV_CHECK((*device)->fill(memory, std::byte{42}, bytes, stream).has_value());
  KV_CHECK((*device)->record(event, stream).has_value());
  KV_CHECK((*device)->synchronize(event).has_value());
  DescriptorLine::send(line.child(), bytes, fd.get());
  pause();
}

/// Another process reads the bytes that the maker wrote to shared memory, also when it maps the
/// memory a second time.
TEST_P(DeviceContract, AllProcessesUseSharedMemoryWhileItsMakerLives) {
  const DescriptorLine line;
  const ChildProcess maker([&] { make_shared_memory(GetParam(), line); });
  const DescriptorLine::Received memory = DescriptorLine::receive(line.parent());
  OPEN_OR_SKIP();
  for (int round = 0; round < 2; ++round) {
    const auto mapped = device_->map_shared(memory.fd.get(), memory.number);
    ASSERT_TRUE(mapped) << mapped.error().text;
    EXPECT_THAT(read(*mapped, memory.number), Each(std::byte{42}));
    device_->unmap_shared(*mapped, memory.number);
  }
}

/// The memory outlives its maker if a descriptor is left, or ends with its maker. The maker is
/// killed before the memory is mapped again.
TEST_P(DeviceContract, SharedMemoryOutlivesItsMakerUnlessItNeedsIt) {
  const DescriptorLine line;
  ChildProcess maker([&] { make_shared_memory(GetParam(), line); });
  DescriptorLine::Received memory = DescriptorLine::receive(line.parent());
  EXPECT_TRUE(memory.number == 0 || maker.kill_and_wait());
  OPEN_OR_SKIP();
  if (device_->facts().memory_needs_its_maker) {
    EXPECT_FALSE(device_->map_shared(memory.fd.get(), memory.number));
    return;
  }
  const auto mapped = device_->map_shared(memory.fd.get(), memory.number);
  ASSERT_TRUE(mapped) << mapped.error().text;
  memory.fd = UniqueFd();  // the mapping is enough
  EXPECT_THAT(read(*mapped, memory.number), Each(std::byte{42}));
  device_->unmap_shared(*mapped, memory.number);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract,
                         ::testing::Values(Make{"Fake", open_fake},
                                           Make{"FakeByIpc", open_fake_by_ipc},
                                           Make{"Cuda", open_cuda},
                                           Make{"CudaByIpc", open_cuda_by_ipc}),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// Fills shared memory with 42s, then reads an address that does not exist in a kernel. Sends the
/// memory, and its size if all calls from then on said that the device is lost; else 1. Without a
/// GPU: 0.
void lose_device(const DescriptorLine& line) {
  auto opened = open_cuda_device(0, GpuMemorySharing::vmm);
  if (!opened) return DescriptorLine::send(line.child(), 0);
  Device& device = **opened;
  const std::size_t bytes = device.facts().shared_granularity;
  const UniqueFd fd = *device.create_shared(bytes);
  std::byte* memory = *device.map_shared(fd.get(), bytes);
  const DeviceStream stream = *device.create_stream();
  const DeviceEvent event = *device.create_event();
  std::byte* private_memory = *device.allocate(1 << 20);
  KV_CHECK(device.fill(private_memory, std::byte{1}, 1 << 20, stream).has_value());
  KV_CHECK(device.fill(memory, std::byte{42}, bytes, stream).has_value());
  KV_CHECK(device.record(event, stream).has_value());
  KV_CHECK(device.synchronize(event).has_value());
  const DeviceProductArgs args{.x = private_memory,
                               .w = reinterpret_cast<const std::byte*>(0x100000),
                               .y = private_memory + (1 << 19),
                               .T = 16,
                               .N = 64,
                               .K = 64};
  KV_CHECK(device.multiply(args, stream).has_value());
  KV_CHECK(device.record(event, stream).has_value());
  const auto is_lost = [](const auto& done) {
    return !done.has_value() && done.error().code == Errc::device_lost;
  };
  const bool all_lost = is_lost(device.synchronize(event)) && is_lost(device.allocate(1 << 20)) &&
                        is_lost(device.record(event, stream)) && is_lost(device.free_bytes());
  DescriptorLine::send(line.child(), all_lost ? bytes : 1, fd.get());
  pause();
}

TEST(CudaDevice, AFaultLosesOneProcessesDeviceAndLeavesSharedMemory) {
  const DescriptorLine line;
  ChildProcess maker([&] { lose_device(line); });
  const DescriptorLine::Received memory = DescriptorLine::receive(line.parent());
  if (memory.number == 0) GTEST_SKIP() << "no GPU with CUDA's VMM";
  ASSERT_NE(memory.number, 1u) << "a call after the fault did not say that the device is lost";
  auto device = open_cuda_device(0, GpuMemorySharing::vmm);
  ASSERT_TRUE(device) << device.error().text;
  const auto mapped = (*device)->map_shared(memory.fd.get(), memory.number);
  ASSERT_TRUE(mapped) << mapped.error().text;
  const DeviceStream stream = *(*device)->create_stream();
  const DeviceEvent event = *(*device)->create_event();
  std::vector<std::byte> got(memory.number);
  ASSERT_TRUE((*device)->copy(got.data(), *mapped, got.size(), stream));
  ASSERT_TRUE((*device)->record(event, stream));
  ASSERT_TRUE((*device)->synchronize(event));
  EXPECT_THAT(got, Each(std::byte{42}));
}

TEST(CudaDevice, OpensOrNamesWhatIsMissing) {
  const auto opened = open_cuda_device(0);
  if (opened) return;
  EXPECT_THAT(opened.error().text, ::testing::HasSubstr("--device cpu"));
  EXPECT_NE(opened.error().code, Errc::none);
}

}  // namespace
}  // namespace kvhive::testing
