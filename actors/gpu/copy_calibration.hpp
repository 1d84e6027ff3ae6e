#pragma once
// Measures which way of making small copies between the GPU and page-locked memory is faster on
// this machine: the copy engines, where each copy has a fixed cost, or a kernel, which uses SMs
// that the model could use. An engine measures once, at its start.

#include "actors/gpu/device_swapper.hpp"

namespace kvhive {

/// Seconds for copying the same pieces to the host (out) and to the device (in).
struct CopyTimes {
  double out = 0, in = 0;
};

/// Whether the kernel is at least 10 % faster, so that it is worth the SMs that it takes.
bool kernel_pays(const CopyTimes& kernel, const CopyTimes& batch);

/// Copies scattered pieces in both directions and logs the speeds. Allocates 8 MiB on the device
/// and 8 MiB on the host for it, and frees them on return. Pieces of 1 MiB and more are not
/// measured: they always use the copy engines.
///
/// \param piece_bytes the smallest piece that will be copied
/// \return the argument `batched_from` of swap_blocks_cuda
[[nodiscard]] Expected<std::size_t> calibrate_copies(Device& device, std::size_t piece_bytes,
                                                     const CopyOnDevice& by_kernel,
                                                     const CopyOnDevice& by_batch);

}  // namespace kvhive
