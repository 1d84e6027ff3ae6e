#pragma once
// Starts a kernel or a copy from the host. Kernels are never started by <<< >>>: launch() works
// under the emulator, too.

#include <cstring>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/device.cuh"
#if !defined(__CUDACC__)
#include "kernels/simt/launch.hpp"
#include "kernels/simt/stream.hpp"
#endif

namespace kvhive::device {

inline constexpr std::size_t kMaxSharedBytes = 227 << 10;  ///< of a block, on sm_90
inline constexpr std::size_t kPlainSharedBytes = 48
                                                 << 10;  ///< more must be requested for each kernel

template <class... Parameters, class... Arguments>
[[nodiscard]] Expected<void> launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
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
  simt::run_on(stream, [=] { simt::launch(kernel, grid, block, shared_bytes, arguments...); });
#endif
  return {};
}

/// Starts copies as one batch for the copy engines. On the default stream they are started one by
/// one.
[[nodiscard]] inline Expected<void> copy_batch(const std::vector<void*>& to,
                                               const std::vector<const void*>& from,
                                               const std::vector<std::size_t>& bytes,
                                               [[maybe_unused]] CudaStream stream) {
#if defined(__CUDACC__)
  cudaError_t error = cudaSuccess;
#if CUDART_VERSION >= 13000
  if (stream != nullptr) {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    error = cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes,
                                 &first, 1, stream);
  } else
#endif
    for (std::size_t i = 0; i < to.size() && error == cudaSuccess; ++i)
      error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
  if (error != cudaSuccess)
    return failure(Errc::os_error, std::string("CUDA copy: ") + cudaGetErrorString(error));
#else
  simt::run_on(stream, [=] {
    for (std::size_t i = 0; i < to.size(); ++i) std::memcpy(to[i], from[i], bytes[i]);
  });
#endif
  return {};
}

}  // namespace kvhive::device
