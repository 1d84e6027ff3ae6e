// The Device of CUDA, by its runtime. The runtime is linked statically and looks for the driver at
// its first call, so programs built with CUDA also start on machines without a driver.

#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "device/cublas_lt.hpp"
#include "device/device.hpp"
#include "device/ipc_record.hpp"

namespace kvhive {
namespace {

/// The driver's virtual memory functions; the runtime does not wrap them.
struct VirtualMemory {
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;

  std::string words_of(CUresult error) const {
    const char* words = nullptr;
    error_string(error, &words);
    return words != nullptr ? words : "unknown error";
  }

  bool load() {
    bool is_complete = true;
    const auto find = [&](auto& function, const char* name) {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result{};
      constexpr unsigned kSince = 12000;
      is_complete = cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault,
                                                     &result) == cudaSuccess &&
                    result == cudaDriverEntryPointSuccess && is_complete;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(create, "cuMemCreate");
    find(release, "cuMemRelease");
    find(export_handle, "cuMemExportToShareableHandle");
    find(import_handle, "cuMemImportFromShareableHandle");
    find(granularity, "cuMemGetAllocationGranularity");
    find(reserve, "cuMemAddressReserve");
    find(free_address, "cuMemAddressFree");
    find(map, "cuMemMap");
    find(unmap, "cuMemUnmap");
    find(set_access, "cuMemSetAccess");
    find(error_string, "cuGetErrorString");
    return is_complete;
  }
};

CUmemAllocationProp shared_memory_of(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {ordinal}};
  return properties;
}

/// Granularity of memory shared by legacy IPC: memory from cudaMalloc in multiples of this does not
/// share its pages with other allocations.
constexpr std::size_t kIpcGranularity = std::size_t{2} << 20;
static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcHandle));

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, DeviceFacts facts, const VirtualMemory& memory,
             std::unique_ptr<CublasLt> products)
      : ordinal_(ordinal),
        facts_(std::move(facts)),
        memory_(memory),
        products_(std::move(products)) {}

  ~CudaDevice() override {
    for (const auto& [handle, memory] : made_) cudaFree(memory);
  }

  const DeviceFacts& facts() const override { return facts_; }

  Expected<std::size_t> free_bytes() override {
    std::size_t free = 0, total = 0;
    if (auto asked = call("cudaMemGetInfo", [&] { return cudaMemGetInfo(&free, &total); }); !asked)
      return forward_error(asked);
    return free;
  }

  // -- memory

  Expected<UniqueFd> create_shared(std::size_t bytes) override {
    return facts_.memory_needs_its_maker ? create_by_ipc(bytes) : create_by_vmm(bytes);
  }
  Expected<std::byte*> map_shared(int fd, std::size_t bytes) override {
    return is_ipc_record(fd) ? map_by_ipc(fd, bytes) : map_by_vmm(fd, bytes);
  }
  void unmap_shared(std::byte* memory, std::size_t bytes) override {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [handle, own] : made_)
        if (own == memory) return;
      if (const auto found = opened_.find(memory); found != opened_.end()) {
        opened_.erase(found);
        cudaIpcCloseMemHandle(memory);
        return;
      }
    }
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    memory_.unmap(address, bytes);
    memory_.free_address(address, bytes);
  }

  Expected<std::byte*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (auto made = call("cudaMalloc", [&] { return cudaMalloc(&memory, bytes); }); !made)
      return forward_error(made);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { cudaFree(memory); }

  Expected<void> lock_pages(std::byte* host, std::size_t bytes) override {
    return call("cudaHostRegister", [&] {
      return cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    });
  }
  void unlock_pages(std::byte* host) override { cudaHostUnregister(host); }

  // -- order

  Expected<DeviceStream> create_stream() override {
    cudaStream_t stream = nullptr;
    if (auto made = call("cudaStreamCreate",
                         [&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); });
        !made)
      return forward_error(made);
    return stream;
  }
  void destroy(DeviceStream stream) override { cudaStreamDestroy(stream); }

  Expected<DeviceEvent> create_event() override {
    cudaEvent_t event = nullptr;
    // Waiting threads sleep instead of spinning, since engines share the cores.
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    if (auto made =
            call("cudaEventCreate", [&] { return cudaEventCreateWithFlags(&event, kFlags); });
        !made)
      return forward_error(made);
    return event;
  }
  void destroy(DeviceEvent event) override { cudaEventDestroy(event); }

  Expected<void> record(DeviceEvent event, DeviceStream stream) override {
    return call("cudaEventRecord", [&] { return cudaEventRecord(event, stream); });
  }
  Expected<void> wait(DeviceStream stream, DeviceEvent event) override {
    return call("cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, event, 0); });
  }
  Expected<void> synchronize(DeviceEvent event) override {
    return call("cudaEventSynchronize", [&] { return cudaEventSynchronize(event); });
  }

  // -- work

  Expected<void> copy(std::byte* to, const std::byte* from, std::size_t bytes,
                      DeviceStream stream) override {
    return call("cudaMemcpyAsync",
                [&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream); });
  }
  Expected<void> fill(std::byte* to, std::byte value, std::size_t bytes,
                      DeviceStream stream) override {
    return call("cudaMemsetAsync",
                [&] { return cudaMemsetAsync(to, std::to_integer<int>(value), bytes, stream); });
  }
  Expected<void> multiply(const DeviceProductArgs& args, DeviceStream stream) override {
    if (args.T == 0) return {};
    if (auto bound = call("cudaSetDevice", [] { return cudaSuccess; }); !bound) return bound;
    return products_->multiply(args, stream);
  }

  // -- graphs

  Expected<void> begin_capture(DeviceStream stream) override {
    return call("cudaStreamBeginCapture",
                [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); });
  }
  Expected<DeviceGraph> end_capture(DeviceStream stream) override {
    cudaGraph_t graph = nullptr;
    if (auto ended =
            call("cudaStreamEndCapture", [&] { return cudaStreamEndCapture(stream, &graph); });
        !ended)
      return forward_error(ended);
    cudaGraphExec_t ready = nullptr;
    auto made =
        call("cudaGraphInstantiate", [&] { return cudaGraphInstantiate(&ready, graph, 0); });
    cudaGraphDestroy(graph);
    if (!made) return forward_error(made);
    return ready;
  }
  Expected<void> launch(DeviceGraph graph, DeviceStream stream) override {
    return call("cudaGraphLaunch", [&] { return cudaGraphLaunch(graph, stream); });
  }
  void destroy(DeviceGraph graph) override { cudaGraphExecDestroy(graph); }

 private:
  Expected<UniqueFd> create_by_vmm(std::size_t bytes) {
    const CUmemAllocationProp properties = shared_memory_of(ordinal_);
    CUmemGenericAllocationHandle handle{};
    if (auto made = call_driver("cuMemCreate",
                                [&] { return memory_.create(&handle, bytes, &properties, 0); });
        !made)
      return forward_error(made);
    int fd = -1;
    auto exported = call_driver("cuMemExportToShareableHandle", [&] {
      return memory_.export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    });
    memory_.release(handle);  // the descriptor keeps the memory
    if (!exported) return forward_error(exported);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
  }

  Expected<std::byte*> map_by_vmm(int fd, std::size_t bytes) {
    if (memory_.import_handle == nullptr)
      return failure(Errc::unsupported,
                     "this driver cannot map memory by descriptors; start the daemon with "
                     "--gpu-memory-sharing ipc");
    CUmemGenericAllocationHandle handle{};
    if (auto imported = call_driver("cuMemImportFromShareableHandle",
                                    [&] {
                                      return memory_.import_handle(
                                          &handle, reinterpret_cast<void*>(std::intptr_t{fd}),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
                                    });
        !imported)
      return forward_error(imported);
    CUdeviceptr address = 0;
    auto mapped = call_driver("cuMemAddressReserve",
                              [&] { return memory_.reserve(&address, bytes, 0, 0, 0); });
    const bool is_reserved = mapped.has_value();
    if (mapped)
      mapped = call_driver("cuMemMap", [&] { return memory_.map(address, bytes, 0, handle, 0); });
    const bool is_mapped = mapped.has_value();
    memory_.release(handle);  // the mapping keeps the memory
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {ordinal_}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (mapped)
      mapped = call_driver("cuMemSetAccess",
                           [&] { return memory_.set_access(address, bytes, &access, 1); });
    if (mapped) return reinterpret_cast<std::byte*>(address);
    if (is_mapped) memory_.unmap(address, bytes);
    if (is_reserved) memory_.free_address(address, bytes);
    return forward_error(mapped);
  }

  Expected<UniqueFd> create_by_ipc(std::size_t bytes) {
    auto memory = allocate(bytes);
    if (!memory) return forward_error(memory);
    cudaIpcMemHandle_t name{};
    if (auto named =
            call("cudaIpcGetMemHandle", [&] { return cudaIpcGetMemHandle(&name, *memory); });
        !named) {
      release(*memory);
      return forward_error(named);
    }
    IpcHandle handle;
    std::memcpy(handle.data(), &name, sizeof name);
    auto record = write_ipc_record(handle, bytes, facts_.uuid);
    if (!record) {
      release(*memory);
      return forward_error(record);
    }
    const std::lock_guard lock(mutex_);
    made_.emplace(handle, *memory);
    return record;
  }
  Expected<std::byte*> map_by_ipc(int fd, std::size_t bytes) {
    auto handle = read_ipc_record(fd, bytes, facts_.uuid);
    if (!handle) return forward_error(handle);
    const std::lock_guard lock(mutex_);
    // CUDA does not let a process open a handle of its own memory.
    if (const auto own = made_.find(*handle); own != made_.end()) return own->second;
    cudaIpcMemHandle_t name;
    std::memcpy(&name, handle->data(), sizeof name);
    void* memory = nullptr;
    if (auto opened = call(
            "cudaIpcOpenMemHandle",
            [&] { return cudaIpcOpenMemHandle(&memory, name, cudaIpcMemLazyEnablePeerAccess); });
        !opened)
      return failure(opened.error().code,
                     opened.error().text +
                         "; legacy IPC shares memory within one PID namespace only (containers: "
                         "--pid=host); or have the daemon share it by vmm");
    opened_.insert(static_cast<std::byte*>(memory));
    return static_cast<std::byte*>(memory);
  }

  /// Whether the context is lost. A fault stays in its context, so every later call fails, even one
  /// that cannot fail by itself.
  static bool is_lost() {
    cudaGetLastError();
    // During a capture on this thread, cudaFree(nullptr) is allowed only in relaxed mode.
    auto mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    const bool fails = cudaFree(nullptr) != cudaSuccess;
    cudaThreadExchangeStreamCaptureMode(&mode);
    return fails;
  }

  template <class Call>
  Expected<void> call(const char* name, Call&& make) const {
    cudaError_t error = cudaSetDevice(ordinal_);  // of the calling thread
    if (error == cudaSuccess) error = make();
    if (error == cudaSuccess) return {};
    const std::string text = std::string(name) + ": " + cudaGetErrorString(error);
    if (is_lost()) return failure(Errc::device_lost, text);
    return failure(error == cudaErrorMemoryAllocation ? Errc::out_of_memory : Errc::os_error, text);
  }

  template <class Call>
  Expected<void> call_driver(const char* name, Call&& make) const {
    if (auto bound = call("cudaSetDevice", [] { return cudaSuccess; }); !bound) return bound;
    const CUresult error = make();
    if (error == CUDA_SUCCESS) return {};
    const std::string text = std::string(name) + ": " + memory_.words_of(error);
    if (is_lost()) return failure(Errc::device_lost, text);
    return failure(error == CUDA_ERROR_OUT_OF_MEMORY ? Errc::out_of_memory : Errc::os_error, text);
  }

  int ordinal_;
  DeviceFacts facts_;
  VirtualMemory memory_;
  std::unique_ptr<CublasLt> products_;
  std::mutex mutex_;
  std::map<IpcHandle, std::byte*> made_;  ///< memory from create_by_ipc()
  std::multiset<std::byte*>
      opened_;  ///< memory from map_by_ipc(); the driver counts the mappings, too
};

/// How memory is shared on this GPU.
struct Sharing {
  std::size_t granularity = kIpcGranularity;
  std::string no_vmm;  ///< why CUDA's VMM cannot share memory here; empty: it can
};

/// Finds out by trying, because functions that a container or a virtual GPU forbids exist all the
/// same. If the GPU's memory is full, the trial says nothing about the way of sharing.
Sharing try_vmm(const VirtualMemory& memory, bool is_loaded, int ordinal) {
  if (!is_loaded) return {kIpcGranularity, "the driver is older than CUDA 12.0"};
  const auto why_not = [&](const char* name, CUresult error) -> Sharing {
    return {kIpcGranularity, std::string(name) + ": " + memory.words_of(error)};
  };
  Sharing sharing;
  const CUmemAllocationProp properties = shared_memory_of(ordinal);
  if (const CUresult error = memory.granularity(&sharing.granularity, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
      error != CUDA_SUCCESS)
    return why_not("cuMemGetAllocationGranularity", error);
  CUmemGenericAllocationHandle handle{};
  const CUresult made = memory.create(&handle, sharing.granularity, &properties, 0);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) return sharing;
  if (made != CUDA_SUCCESS) return why_not("cuMemCreate", made);
  int fd = -1;
  const CUresult exported =
      memory.export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const UniqueFd closed(fd);
  memory.release(handle);
  if (exported != CUDA_SUCCESS) return why_not("cuMemExportToShareableHandle", exported);
  return sharing;
}

/// Why legacy IPC cannot be used, found out by trying; empty: it can.
std::string why_no_ipc() {
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, kIpcGranularity);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  cudaIpcMemHandle_t name{};
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&name, memory);
  cudaFree(memory);
  cudaGetLastError();
  return error == cudaSuccess ? std::string()
                              : std::string("cudaIpcGetMemHandle: ") + cudaGetErrorString(error);
}

}  // namespace

Expected<std::unique_ptr<Device>> open_cuda_device(int ordinal, GpuMemorySharing wanted) {
  int driver = 0, count = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0)
    return failure(Errc::not_found,
                   "no NVIDIA driver (libcuda.so.1); install one that knows CUDA " +
                       std::to_string(CUDART_VERSION / 1000) + ", or use --device cpu");
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return failure(Errc::not_found,
                   std::string("the NVIDIA driver (CUDA ") + std::to_string(driver / 1000) + "." +
                       std::to_string(driver % 1000 / 10) + ") says: " + cudaGetErrorString(error) +
                       "; see nvidia-smi, or use --device cpu");
  }
  if (ordinal < 0 || ordinal >= count)
    return failure(Errc::not_found, "no GPU " + std::to_string(ordinal) + ", there are " +
                                        std::to_string(count) +
                                        "; see CUDA_VISIBLE_DEVICES, or use --device cpu");
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal); error != cudaSuccess)
    return failure(Errc::os_error,
                   std::string("cudaGetDeviceProperties: ") + cudaGetErrorString(error));
  if (properties.major < 8)
    return failure(Errc::unsupported, std::string(properties.name) + " has compute capability " +
                                          std::to_string(properties.major) + "." +
                                          std::to_string(properties.minor) +
                                          ", kvhive's kernels need 8.0; use --device cpu");
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error != cudaSuccess)
    return failure(Errc::os_error, std::string("no context on ") + properties.name + ": " +
                                       cudaGetErrorString(error) +
                                       "; see nvidia-smi, or use --device cpu");
  VirtualMemory memory;
  const bool is_loaded = memory.load();
  Sharing sharing;
  if (wanted != GpuMemorySharing::ipc) sharing = try_vmm(memory, is_loaded, ordinal);
  if (wanted == GpuMemorySharing::vmm && !sharing.no_vmm.empty())
    return failure(Errc::unsupported, std::string(properties.name) +
                                          " cannot share memory by descriptors (" + sharing.no_vmm +
                                          "); use --gpu-memory-sharing ipc, or --device cpu");
  const bool is_by_ipc = wanted == GpuMemorySharing::ipc || !sharing.no_vmm.empty();
  if (const std::string no_ipc = is_by_ipc ? why_no_ipc() : std::string(); !no_ipc.empty())
    return failure(Errc::unsupported,
                   std::string(properties.name) + " cannot share memory by legacy IPC (" + no_ipc +
                       (sharing.no_vmm.empty() ? "" : "), nor by descriptors (" + sharing.no_vmm) +
                       "); use --device cpu");
  auto products = CublasLt::load();
  if (!products) return forward_error(products);
  return std::make_unique<CudaDevice>(
      ordinal,
      DeviceFacts{properties.name, uuid_text(properties.uuid), properties.major, properties.minor,
                  properties.totalGlobalMem, sharing.granularity, driver, is_by_ipc,
                  sharing.no_vmm},
      memory, std::move(*products));
}

}  // namespace kvhive
