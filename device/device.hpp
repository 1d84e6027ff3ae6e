#pragma once
// One GPU as one process uses it: memory that processes share, streams, events, copies, products of
// matrices. Narrow on purpose: what an engine needs and no more, so that a fake one
// (tests/device) can stand in for all of it, with errors and delays where a test wants them.
// Kernels are not in it: they take its streams (kernels/cuda).
//
// Order: what takes a stream happens in that stream's order, at some time after the call. The host
// may touch what a copy reads or writes only when an event recorded after it has been waited for.
//
// Errors name the driver's call. Errc::out_of_memory: the device has no room. Errc::device_lost:
// the context is gone, and every later call says so, too; nothing computed since the last event
// that was waited for is to be trusted, and only a new process gets a new context. Errc::os_error:
// all else.

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
  int driver_version = 0;              ///< CUDA's, 1000 * major + 10 * minor
  /// Shared memory is kept by its maker alone, not by descriptors: see create_shared().
  bool memory_needs_its_maker = false;
  std::string sharing_reason;  ///< why it is, where nobody has asked for it
};

/// y[T, N] = x[T, K] * w[N, K]^T (+ bias[N]), all row-major in device memory, added in f32.
struct ProductArgs {
  const std::byte* x = nullptr;     ///< [T, K] of `dtype`
  const std::byte* w = nullptr;     ///< [N, K] of `dtype`
  const std::byte* bias = nullptr;  ///< [N] of `out_dtype`, or null
  std::byte* y = nullptr;           ///< [T, N] of `out_dtype`; no overlap with the others
  std::int32_t T = 0, N = 0, K = 0;
  Dtype dtype = Dtype::bf16;      ///< bf16, f16 or f32
  Dtype out_dtype = Dtype::bf16;  ///< the same, or f32
};

/// Used by any number of threads at once, but for one stream by one at a time.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual const DeviceFacts& facts() const = 0;
  /// Now, other processes counted.
  virtual Expected<std::size_t> free_bytes() = 0;

  // -- memory

  /// Memory that lives as long as a process has this descriptor or a copy of it open, or the memory
  /// mapped. Where facts().memory_needs_its_maker: as long as this Device, and what others have
  /// mapped of it then is undefined; the descriptor is but its name. Not zeroed.
  /// \param bytes  a multiple of facts().shared_granularity
  virtual Expected<UniqueFd> create_shared(std::size_t bytes) = 0;
  /// Maps what create_shared() made, here or in another process, all of it, for reading and
  /// writing. The descriptor says how, whatever create_shared() does here.
  virtual Expected<std::byte*> map_shared(int fd, std::size_t bytes) = 0;
  virtual void unmap_shared(std::byte* memory, std::size_t bytes) = 0;
  /// Private memory, aligned to 256 bytes, not zeroed.
  virtual Expected<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  /// Page-locks host memory, so that copies are truly asynchronous and kernels can reach it at the
  /// same address. Registering the same memory twice in one process is an error.
  virtual Expected<void> lock_pages(std::byte* host, std::size_t bytes) = 0;
  virtual void unlock_pages(std::byte* host) = 0;

  // -- order

  virtual Expected<DeviceStream> create_stream() = 0;
  virtual void destroy(DeviceStream stream) = 0;
  virtual Expected<DeviceEvent> create_event() = 0;
  virtual void destroy(DeviceEvent event) = 0;
  virtual Expected<void> record(DeviceEvent event, DeviceStream stream) = 0;
  /// What comes later in the stream waits for the event's last record().
  virtual Expected<void> wait(DeviceStream stream, DeviceEvent event) = 0;
  /// The host waits. Faults of what came before are reported here.
  virtual Expected<void> synchronize(DeviceEvent event) = 0;

  // -- work

  /// Between host and device memory, or within either. Host memory that is not page-locked may be
  /// read before the call returns.
  virtual Expected<void> copy(std::byte* to, const std::byte* from, std::size_t bytes,
                              DeviceStream stream) = 0;
  virtual Expected<void> fill(std::byte* to, std::byte value, std::size_t bytes,
                              DeviceStream stream) = 0;
  virtual Expected<void> multiply(const ProductArgs& args, DeviceStream stream) = 0;

  // -- graphs: work recorded once and started many times, with the same pointers

  /// From here to end_capture() what takes the stream is recorded instead of done.
  virtual Expected<void> begin_capture(DeviceStream stream) = 0;
  /// Also if it fails the stream does its work again.
  virtual Expected<DeviceGraph> end_capture(DeviceStream stream) = 0;
  virtual Expected<void> launch(DeviceGraph graph, DeviceStream stream) = 0;
  virtual void destroy(DeviceGraph graph) = 0;
};

/// The machine's GPU `ordinal`; an error that names what is missing (the build's CUDA, the driver,
/// a GPU) and the remedy.
///
/// \param sharing  how create_shared() makes memory that other processes can map
Expected<std::unique_ptr<Device>> open_cuda_device(
    int ordinal, GpuMemorySharing sharing = GpuMemorySharing::automatic);

}  // namespace kvhive
