#pragma once
// Owners of device memory, locked pages and streams.

#include <cstddef>
#include <utility>
#include <vector>

#include "device/device.hpp"

namespace kvhive {

/// Shared device memory, mapped. Move-only; the device outlives it.
class SharedDeviceMemory {
 public:
  SharedDeviceMemory() = default;
  [[nodiscard]] static Expected<SharedDeviceMemory> map(Device& device, int fd, std::size_t bytes);
  SharedDeviceMemory(SharedDeviceMemory&& other) noexcept { swap(other); }
  SharedDeviceMemory& operator=(SharedDeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedDeviceMemory() {
    if (data_ != nullptr) device_->unmap_shared(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  void swap(SharedDeviceMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Private device memory. Move-only; the device outlives it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  [[nodiscard]] static Expected<DeviceBuffer> allocate(Device& device, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->release(data_);
  }
  std::byte* data() const { return data_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
  }
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Zeroed host memory in pages of its own, page-locked: copies go through it. Move-only; the device
/// outlives it.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  [[nodiscard]] static Expected<StagingBuffer> allocate(Device& device, std::size_t bytes);
  StagingBuffer(StagingBuffer&& other) noexcept { swap(other); }
  StagingBuffer& operator=(StagingBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~StagingBuffer();
  std::byte* data() const { return data_; }

 private:
  void swap(StagingBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;  ///< null: not locked
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory, page-locked for a device. Move-only; device and memory outlive it.
class LockedPages {
 public:
  LockedPages() = default;
  /// Locks chunks of at most 64 GiB: CUDA refuses to register half a terabyte at once, and to copy
  /// across the border of two registrations.
  ///
  /// \param unit bytes that are copied as a whole; chunks are multiples of it
  /// \param fd file that the memory is a mapping of. Processes lock one after the other, by flock
  /// on it, because pinning the same pages at the same time fails.
  [[nodiscard]] static Expected<LockedPages> lock(Device& device, std::byte* memory,
                                                  std::size_t bytes, std::size_t unit, int fd);
  /// Bytes of a chunk: whole units, and whole pages.
  static std::size_t chunk_bytes(std::size_t unit);
  LockedPages(LockedPages&& other) noexcept { swap(other); }
  LockedPages& operator=(LockedPages&& other) noexcept {
    swap(other);
    return *this;
  }
  ~LockedPages() {
    for (std::byte* chunk : chunks_) device_->unlock_pages(chunk);
  }

 private:
  void swap(LockedPages& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(chunks_, other.chunks_);
  }
  Device* device_ = nullptr;
  std::vector<std::byte*> chunks_;
};

/// A device stream with one event of its own: the mark, which the host or another stream can wait
/// for. Move-only; the device outlives it.
class OrderedStream {
 public:
  OrderedStream() = default;
  [[nodiscard]] static Expected<OrderedStream> open(Device& device);
  OrderedStream(OrderedStream&& other) noexcept { swap(other); }
  OrderedStream& operator=(OrderedStream&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OrderedStream() {
    if (event_ != nullptr) device_->destroy(event_);
    if (stream_ != nullptr) device_->destroy(stream_);
  }

  DeviceStream handle() const { return stream_; }
  /// Records the mark behind all work started here so far.
  [[nodiscard]] Expected<void> mark() const { return device_->record(event_, stream_); }
  /// Work started here from now on runs after `other`'s last mark. The host does not wait.
  [[nodiscard]] Expected<void> run_after(const OrderedStream& other) const {
    return device_->wait(stream_, other.event_);
  }
  /// The host waits for the last mark.
  [[nodiscard]] Expected<void> wait_for_mark() const { return device_->synchronize(event_); }
  /// The host waits for all work started here so far.
  [[nodiscard]] Expected<void> finish() const {
    if (auto marked = mark(); !marked) return marked;
    return wait_for_mark();
  }

 private:
  void swap(OrderedStream& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
    std::swap(event_, other.event_);
  }
  Device* device_ = nullptr;
  DeviceStream stream_ = nullptr;
  DeviceEvent event_ = nullptr;
};

}  // namespace kvhive
