// For builds without CUDA.

#include "device/device.hpp"

namespace kvhive {

Expected<std::unique_ptr<Device>> open_cuda_device(int, GpuMemorySharing) {
  return failure(Errc::unsupported,
                 "this kvhive was built without CUDA; install the CUDA Toolkit (nvcc), configure "
                 "and build again, or use --device cpu");
}

}  // namespace kvhive
