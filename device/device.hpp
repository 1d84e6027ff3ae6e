#pragma once
// One GPU as one process uses it: memory shared between processes, streams, events, copies, matrix
// products, graphs. It has only what an engine needs, so that a fake device (tests/device) can
// implement all of it, with errors and delays where a test wants them. Kernels are not part of it;
// they take its streams (kernels/cuda).
//
// Order: work given to a stream is done in that stream's order, at some time after the call. The
// host may access what a copy reads or writes only after it has waited for an event recorded behind
// the copy.
//
// Errors name the driver's call. Errc::out_of_memory: the device has no room. Errc::device_lost:
// the context is gone; every later call fails the same way, results since the last event that was
// waited for are invalid, and only a new process gets a new context. Errc::os_error: everything
// else.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "config/choices.hpp"
#include "config/dtype.hpp"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace kvhive {

using DeviceStream = CUstream_st*;    ///< cudaStream_t
using DeviceEvent = CUevent_st*;      ///< cudaEvent_t
using DeviceGraph = CUgraphExec_st*;  ///< cudaGraphExec_t

struct DeviceFacts {
  std::string name;
  std::string uuid;          ///< the same in every process and container
  int major = 0, minor = 0;  ///< compute capability
  std::size_t total_bytes = 0;
  std::size_t shared_granularity = 0;  ///< shared memory comes in multiples of it
  int driver_version = 0;              ///< CUDA version of the driver, 1000 * major + 10 * minor
  /// True: shared memory lives as long as the process that made it, not as long as its descriptors;
  /// see create_shared().
  bool memory_needs_its_maker = false;
  std::string
      sharing_reason;  ///< why memory_needs_its_maker is true, if the operator has not asked for it
};

/// y[T, N] = x[T, K] * w[N, K]^T (+ bias[N]), row-major, in device memory, added up in f32.
struct DeviceProductArgs {
  const std::byte* x = nullptr;     ///< [T, K] of `dtype`
  const std::byte* w = nullptr;     ///< [N, K] of `dtype`
  const std::byte* bias = nullptr;  ///< [N] of `out_dtype`, or null
  std::byte* y = nullptr;           ///< [T, N] of `out_dtype`; no overlap with the others
  std::int32_t T = 0, N = 0, K = 0;
  Dtype dtype = Dtype::bf16;      ///< bf16, f16 or f32
  Dtype out_dtype = Dtype::bf16;  ///< the same, or f32
};

/// Thread-safe, except that only one thread at a time may use a given stream.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual const DeviceFacts& facts() const = 0;
  /// Free memory of the device now, with other processes' memory taken off.
  [[nodiscard]] virtual Expected<std::size_t> free_bytes() = 0;

  // -- memory

  /// Makes shared memory. It lives as long as a process has this descriptor or a copy of it open,
  /// or has the memory mapped. If facts().memory_needs_its_maker, it lives only as long as this
  /// Device; after that, mappings in other processes are undefined, and the descriptor is only a
  /// name. Not zeroed.
  ///
  /// \param bytes a multiple of facts().shared_granularity
  [[nodiscard]] virtual Expected<UniqueFd> create_shared(std::size_t bytes) = 0;
  /// Maps all of the memory that create_shared() made, in this or in another process, for reading
  /// and writing. The descriptor tells how it is shared, even if this process shares its own memory
  /// in another way.
  [[nodiscard]] virtual Expected<std::byte*> map_shared(int fd, std::size_t bytes) = 0;
  virtual void unmap_shared(std::byte* memory, std::size_t bytes) = 0;
  /// Private memory, aligned to 256 bytes, not zeroed.
  [[nodiscard]] virtual Expected<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  /// Page-locks host memory, so that copies are asynchronous and kernels can access it at the same
  /// address. Locking the same memory twice in one process is an error.
  [[nodiscard]] virtual Expected<void> lock_pages(std::byte* host, std::size_t bytes) = 0;
  virtual void unlock_pages(std::byte* host) = 0;

  // -- order

  [[nodiscard]] virtual Expected<DeviceStream> create_stream() = 0;
  virtual void destroy(DeviceStream stream) = 0;
  [[nodiscard]] virtual Expected<DeviceEvent> create_event() = 0;
  virtual void destroy(DeviceEvent event) = 0;
  [[nodiscard]] virtual Expected<void> record(DeviceEvent event, DeviceStream stream) = 0;
  /// Later work on the stream waits for the last record() of the event.
  [[nodiscard]] virtual Expected<void> wait(DeviceStream stream, DeviceEvent event) = 0;
  /// The host waits for the event. Returns the faults of the work before it.
  [[nodiscard]] virtual Expected<void> synchronize(DeviceEvent event) = 0;

  // -- work

  /// Copies between host and device memory, or within one of them. Host memory that is not
  /// page-locked may be read before the call returns.
  [[nodiscard]] virtual Expected<void> copy(std::byte* to, const std::byte* from, std::size_t bytes,
                                            DeviceStream stream) = 0;
  [[nodiscard]] virtual Expected<void> fill(std::byte* to, std::byte value, std::size_t bytes,
                                            DeviceStream stream) = 0;
  [[nodiscard]] virtual Expected<void> multiply(const DeviceProductArgs& args,
                                                DeviceStream stream) = 0;

  // -- graphs: work that is recorded once and started many times, with the same pointers

  /// From now until end_capture(), work given to the stream is recorded and not done.
  [[nodiscard]] virtual Expected<void> begin_capture(DeviceStream stream) = 0;
  /// Ends the recording, also when it returns an error.
  [[nodiscard]] virtual Expected<DeviceGraph> end_capture(DeviceStream stream) = 0;
  [[nodiscard]] virtual Expected<void> launch(DeviceGraph graph, DeviceStream stream) = 0;
  virtual void destroy(DeviceGraph graph) = 0;
};

/// Opens the machine's GPU `ordinal`. An error names what is missing (CUDA in this build, the
/// driver, a GPU) and the remedy.
///
/// \param sharing how create_shared() makes memory that other processes can map
[[nodiscard]] Expected<std::unique_ptr<Device>> open_cuda_device(
    int ordinal, GpuMemorySharing sharing = GpuMemorySharing::automatic);

}  // namespace kvhive
