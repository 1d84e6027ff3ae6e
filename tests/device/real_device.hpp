#pragma once
// The machine's GPU where tests otherwise use the fake one. Calls are numbered and noted as there;
// it cannot be made to fail.

#include <stdexcept>

#include "tests/device/fake_device.hpp"

namespace kvhive::testing {

class RealDevice final : public Device {
 public:
  RealDevice() {
    auto opened = open_cuda_device(0);
    if (!opened) throw std::runtime_error(opened.error().text);
    device_ = std::move(*opened);
  }

  /// Takes before_call only.
  void set_faults(FakeFaults faults) {
    if (faults.call != 0 || faults.work != 0)
      throw std::runtime_error("a GPU does not fail when asked");
    before_call_ = std::move(faults.before_call);
  }
  std::uint64_t calls() const { return calls_; }
  std::uint64_t works() const { return 0; }
  /// How many allocations, mappings, streams, events, graphs and page locks have not been released.
  std::size_t leftovers() const { return leftovers_; }

  const DeviceFacts& facts() const override { return device_->facts(); }
  Expected<std::size_t> free_bytes() override {
    note("free_bytes");
    return device_->free_bytes();
  }
  Expected<UniqueFd> create_shared(std::size_t bytes) override {
    note("create_shared");
    return device_->create_shared(bytes);
  }
  Expected<std::byte*> map_shared(int fd, std::size_t bytes) override {
    note("map_shared");
    return made(device_->map_shared(fd, bytes));
  }
  void unmap_shared(std::byte* memory, std::size_t bytes) override {
    --leftovers_;
    device_->unmap_shared(memory, bytes);
  }
  Expected<std::byte*> allocate(std::size_t bytes) override {
    note("allocate");
    return made(device_->allocate(bytes));
  }
  void release(std::byte* memory) override {
    --leftovers_;
    device_->release(memory);
  }
  Expected<void> lock_pages(std::byte* host, std::size_t bytes) override {
    note("lock_pages");
    return made(device_->lock_pages(host, bytes));
  }
  void unlock_pages(std::byte* host) override {
    --leftovers_;
    device_->unlock_pages(host);
  }
  Expected<DeviceStream> create_stream() override {
    note("create_stream");
    return made(device_->create_stream());
  }
  void destroy(DeviceStream stream) override {
    --leftovers_;
    device_->destroy(stream);
  }
  Expected<DeviceEvent> create_event() override {
    note("create_event");
    return made(device_->create_event());
  }
  void destroy(DeviceEvent event) override {
    --leftovers_;
    device_->destroy(event);
  }
  Expected<void> record(DeviceEvent event, DeviceStream stream) override {
    note("record");
    return device_->record(event, stream);
  }
  Expected<void> wait(DeviceStream stream, DeviceEvent event) override {
    note("wait");
    return device_->wait(stream, event);
  }
  Expected<void> synchronize(DeviceEvent event) override {
    note("synchronize");
    return device_->synchronize(event);
  }
  Expected<void> copy(std::byte* to, const std::byte* from, std::size_t bytes,
                      DeviceStream stream) override {
    note("copy");
    return device_->copy(to, from, bytes, stream);
  }
  Expected<void> fill(std::byte* to, std::byte value, std::size_t bytes,
                      DeviceStream stream) override {
    note("fill");
    return device_->fill(to, value, bytes, stream);
  }
  Expected<void> multiply(const DeviceProductArgs& args, DeviceStream stream) override {
    note("multiply");
    return device_->multiply(args, stream);
  }
  Expected<void> begin_capture(DeviceStream stream) override {
    note("begin_capture");
    return device_->begin_capture(stream);
  }
  Expected<DeviceGraph> end_capture(DeviceStream stream) override {
    note("end_capture");
    return made(device_->end_capture(stream));
  }
  Expected<void> launch(DeviceGraph graph, DeviceStream stream) override {
    note("launch");
    return device_->launch(graph, stream);
  }
  void destroy(DeviceGraph graph) override {
    --leftovers_;
    device_->destroy(graph);
  }

 private:
  void note(const char* name) {
    const std::uint64_t number = ++calls_;
    if (before_call_) before_call_(number, name);
  }
  template <class Made>
  Made made(Made result) {
    leftovers_ += result.has_value();
    return result;
  }

  std::unique_ptr<Device> device_;
  std::function<void(std::uint64_t, const char*)> before_call_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::size_t> leftovers_{0};
};

}  // namespace kvhive::testing
