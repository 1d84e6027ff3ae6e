#include "device/device_memory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <string>

namespace kvhive {
namespace {

constexpr std::size_t kMostLockedAtOnce = std::size_t{64} << 30;

/// Opens the file again. A flock belongs to an open file, and a descriptor that other processes got
/// shares its open file with them.
Expected<UniqueFd> reopened(int fd) {
  UniqueFd own{open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC)};
  if (!own) return os_failure("reopen the host arena");
  return own;
}

}  // namespace

Expected<SharedDeviceMemory> SharedDeviceMemory::map(Device& device, int fd, std::size_t bytes) {
  auto data = device.map_shared(fd, bytes);
  if (!data) return forward_error(data);
  SharedDeviceMemory memory;
  memory.device_ = &device;
  memory.data_ = *data;
  memory.bytes_ = bytes;
  return memory;
}

Expected<DeviceBuffer> DeviceBuffer::allocate(Device& device, std::size_t bytes) {
  auto data = device.allocate(bytes);
  if (!data) return forward_error(data);
  DeviceBuffer buffer;
  buffer.device_ = &device;
  buffer.data_ = *data;
  return buffer;
}

Expected<StagingBuffer> StagingBuffer::allocate(Device& device, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return os_failure("mmap of staging memory");
  StagingBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  if (auto locked = device.lock_pages(buffer.data_, bytes); !locked) return forward_error(locked);
  buffer.device_ = &device;
  return buffer;
}

StagingBuffer::~StagingBuffer() {
  if (device_ != nullptr) device_->unlock_pages(data_);
  if (data_ != nullptr) munmap(data_, bytes_);
}

std::size_t LockedPages::chunk_bytes(std::size_t unit) {
  constexpr std::size_t kPage = 4096;
  const std::size_t step = std::lcm(unit, kPage);
  return std::max<std::size_t>(kMostLockedAtOnce / step, 1) * step;
}

Expected<LockedPages> LockedPages::lock(Device& device, std::byte* memory, std::size_t bytes,
                                        std::size_t unit, int fd) {
  LockedPages pages;
  pages.device_ = &device;
  if (bytes == 0) return pages;
  auto turn = reopened(fd);
  if (!turn) return forward_error(turn);
  while (flock(turn->get(), LOCK_EX) != 0)  // released when its holder closes it or dies
    if (errno != EINTR) return os_failure("flock of the host arena");
  const std::size_t chunk = chunk_bytes(unit);
  for (std::size_t at = 0; at < bytes; at += chunk) {
    auto locked = device.lock_pages(memory + at, std::min(chunk, bytes - at));
    if (!locked) return forward_error(locked);
    pages.chunks_.push_back(memory + at);
  }
  return pages;
}

Expected<OrderedStream> OrderedStream::open(Device& device) {
  OrderedStream opened;
  opened.device_ = &device;
  auto stream = device.create_stream();
  if (!stream) return forward_error(stream);
  opened.stream_ = *stream;
  auto event = device.create_event();
  if (!event) return forward_error(event);
  opened.event_ = *event;
  return opened;
}

}  // namespace kvhive
