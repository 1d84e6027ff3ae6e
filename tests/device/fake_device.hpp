#pragma once
// A GPU made of host memory that keeps the promises of device/device.hpp and no others. Streams do
// their work late, on threads of their own; copies read their sources when their turn comes; new
// memory is filled with poison. Shared memory is a memfd that lives as long as CUDA's memory does
// or, as with legacy IPC, only as long as its maker. A test can make calls and work fail.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "device/device.hpp"

namespace kvhive::testing {

/// Calls and work are numbered from 1 in this process; 0: never.
struct FakeFaults {
  std::uint64_t call = 0;  ///< the driver call with this number fails
  Errc error = Errc::device_lost;
  std::uint64_t work = 0;  ///< the piece of work with this number faults, and the context is lost
  std::chrono::microseconds delay{0};  ///< of every piece of work
  /// Called by a stream's thread before each piece of work, and by the caller before each call.
  std::function<void(std::uint64_t number)> before_work = {};
  std::function<void(std::uint64_t number, const char* name)> before_call = {};
};

/// The facts of a fake GPU unless a test sets others.
DeviceFacts fake_facts();

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(DeviceFacts facts = fake_facts());
  ~FakeDevice() override;

  /// The faults from now on; numbers continue.
  void set_faults(FakeFaults faults);
  std::uint64_t calls() const { return calls_; }
  std::uint64_t works() const { return works_; }
  /// How many allocations, streams, events, graphs and page locks have not been released.
  std::size_t leftovers() const;

  const DeviceFacts& facts() const override { return facts_; }
  [[nodiscard]] Expected<std::size_t> free_bytes() override;
  [[nodiscard]] Expected<UniqueFd> create_shared(std::size_t bytes) override;
  [[nodiscard]] Expected<std::byte*> map_shared(int fd, std::size_t bytes) override;
  void unmap_shared(std::byte* memory, std::size_t bytes) override;
  [[nodiscard]] Expected<std::byte*> allocate(std::size_t bytes) override;
  void release(std::byte* memory) override;
  [[nodiscard]] Expected<void> lock_pages(std::byte* host, std::size_t bytes) override;
  void unlock_pages(std::byte* host) override;
  [[nodiscard]] Expected<DeviceStream> create_stream() override;
  void destroy(DeviceStream stream) override;
  [[nodiscard]] Expected<DeviceEvent> create_event() override;
  void destroy(DeviceEvent event) override;
  [[nodiscard]] Expected<void> record(DeviceEvent event, DeviceStream stream) override;
  [[nodiscard]] Expected<void> wait(DeviceStream stream, DeviceEvent event) override;
  [[nodiscard]] Expected<void> synchronize(DeviceEvent event) override;
  [[nodiscard]] Expected<void> copy(std::byte* to, const std::byte* from, std::size_t bytes,
                                    DeviceStream stream) override;
  [[nodiscard]] Expected<void> fill(std::byte* to, std::byte value, std::size_t bytes,
                                    DeviceStream stream) override;
  [[nodiscard]] Expected<void> multiply(const DeviceProductArgs& args,
                                        DeviceStream stream) override;
  [[nodiscard]] Expected<void> begin_capture(DeviceStream stream) override;
  [[nodiscard]] Expected<DeviceGraph> end_capture(DeviceStream stream) override;
  [[nodiscard]] Expected<void> launch(DeviceGraph graph, DeviceStream stream) override;
  void destroy(DeviceGraph graph) override;

 private:
  struct Stream;
  struct Event;
  struct Graph;

  [[nodiscard]] Expected<void> call(const char* name);
  [[nodiscard]] Expected<UniqueFd> keep(UniqueFd memory, std::size_t bytes);
  [[nodiscard]] Expected<UniqueFd> ask_maker(int record, std::size_t bytes) const;
  void perform(const std::function<void()>& work);
  bool is_on_device(const std::byte* from, std::size_t bytes) const;
  bool is_page_locked(const std::byte* from, std::size_t bytes) const;
  [[nodiscard]] Expected<void> check_memory(const char* name, const std::byte* from,
                                            std::size_t bytes) const;
  Stream& stream_of(DeviceStream stream) const;
  std::shared_ptr<Event> event_of(DeviceEvent event) const;

  DeviceFacts facts_;
  mutable std::mutex mutex_;
  FakeFaults faults_;
  std::string lost_;  ///< why the context is lost; empty: it is not
  std::atomic<std::uint64_t> calls_{0}, works_{0};
  std::size_t shared_created_ = 0;  ///< bytes that this process has created
  std::map<int, UniqueFd>
      kept_;  ///< shared memory that lives as long as this device, by its descriptor's number
  std::map<const std::byte*, std::size_t> private_, shared_, locked_;
  std::map<DeviceStream, std::unique_ptr<Stream>> streams_;
  std::map<DeviceEvent, std::shared_ptr<Event>> events_;
  std::map<DeviceGraph, std::shared_ptr<Graph>> graphs_;
};

}  // namespace kvhive::testing
