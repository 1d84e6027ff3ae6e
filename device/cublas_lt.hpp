#pragma once
// cuBLASLt, loaded by dlopen when a GPU is opened: the library is half a gigabyte, and engines
// without a GPU should not load it.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "device/device.hpp"

namespace kvhive {

class CublasLt {
 public:
  [[nodiscard]] static Expected<std::unique_ptr<CublasLt>> load();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt();

  /// See Device::multiply. The algorithm is chosen once for each shape.
  [[nodiscard]] Expected<void> multiply(const DeviceProductArgs& args, cudaStream_t stream);

 private:
  struct Functions;
  struct Plan;
  using Shape = std::tuple<std::int32_t, std::int32_t, std::int32_t, Dtype, Dtype, bool>;

  explicit CublasLt(std::unique_ptr<Functions> functions);
  [[nodiscard]] Expected<Plan*> plan_of(const DeviceProductArgs& args);
  [[nodiscard]] Expected<void*> workspace_of(cudaStream_t stream);

  std::unique_ptr<Functions> functions_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::map<cudaStream_t, void*> workspaces_;  ///< one each, because work on two streams may overlap
};

}  // namespace kvhive
