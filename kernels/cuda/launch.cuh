#pragma once
// How the host starts a kernel: no <<< >>>, so that the same line starts it under the emulator.

#include <string>

#include "config/expected.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/device.cuh"
#if !defined(__CUDACC__)
#include "tests/simt/launch.hpp"
#endif

namespace kvhive::device {

inline constexpr std::size_t kMaxSharedBytes = 227 << 10;   ///< of a block, on sm_90
inline constexpr std::size_t kPlainSharedBytes = 48 << 10;  ///< more must be asked for

template <class... Parameters, class... Arguments>
Expected<void> launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      std::size_t shared_bytes, [[maybe_unused]] CudaStream stream,
                      const Arguments&... arguments) {
  if (shared_bytes > kMaxSharedBytes)
    return failure(Errc::unsupported, "the kernel needs " + std::to_string(shared_bytes) +
                                          " bytes of shared memory, a block has " +
                                          std::to_string(kMaxSharedBytes));
#if defined(__CUDACC__)
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaError_t error = cudaSuccess;
  if (shared_bytes > kPlainSharedBytes)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  if (error == cudaSuccess)
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess)
    return failure(Errc::os_error, std::string("CUDA launch: ") + cudaGetErrorString(error));
#else
  simt::launch(kernel, grid, block, shared_bytes, arguments...);
#endif
  return {};
}

}  // namespace kvhive::device
