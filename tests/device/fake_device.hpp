#pragma once
// A GPU of host memory: everything device/device.hpp promises and no more. Streams do their work
// late, on threads of their own; fresh memory is poisoned; shared memory is a memfd, which lives as
// long as CUDA's does, or is to be had from its maker alone, as legacy IPC's is; copies read their
// sources when their turn comes. Calls and work fail when a test wants it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "device/device.hpp"

namespace kvhive::testing {

/// Numbers count from 1 in this process; 0 = never.
struct FakeFaults {
  std::uint64_t call = 0;  ///< this call of the driver fails
  Errc error = Errc::device_lost;
  std::uint64_t work = 0;  ///< this piece of work on a stream faults, and the context is lost
  std::chrono::microseconds delay{0};  ///< of every piece of work
  /// Called by a stream's thread before each piece of work, and by the caller before each call.
  std::function<void(std::uint64_t number)> before_work = {};
  std::function<void(std::uint64_t number, const char* name)> before_call = {};
};

/// What a fake GPU is like where a test says nothing else.
DeviceFacts fake_facts();

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(DeviceFacts facts = fake_facts());
  ~FakeDevice() override;

  /// What goes wrong from now on; numbers go on counting.
  void set_faults(FakeFaults faults);
  std::uint64_t calls() const { return calls_; }
  std::uint64_t works() const { return works_; }
  /// Memory, streams, events, graphs and page locks that nobody has given back.
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
  [[nodiscard]] Expected<void> multiply(const ProductArgs& args, DeviceStream stream) override;
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
  std::string lost_;  ///< why the context is; empty = it is not
  std::atomic<std::uint64_t> calls_{0}, works_{0};
  std::size_t shared_created_ = 0;  ///< bytes, by this process
  std::map<int, UniqueFd> kept_;    ///< memory that needs us, by the descriptor's number
  std::map<const std::byte*, std::size_t> private_, shared_, locked_;
  std::map<DeviceStream, std::unique_ptr<Stream>> streams_;
  std::map<DeviceEvent, std::shared_ptr<Event>> events_;
  std::map<DeviceGraph, std::shared_ptr<Graph>> graphs_;
};

}  // namespace kvhive::testing
