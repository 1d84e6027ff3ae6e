#pragma once
// Which way small copies between a GPU and page-locked memory are faster on this machine, measured
// once, before an engine works: by the copy engines, which pay for each copy, or by a kernel, which
// takes SMs from the model.

#include "actors/gpu/device_swapper.hpp"

namespace kvhive {

/// Seconds for the same pieces.
struct CopyTimes {
  double out = 0, in = 0;
};

/// Whether the kernel is so much faster that it is worth the SMs that it takes.
bool kernel_pays(const CopyTimes& kernel, const CopyTimes& batch);

/// Copies scattered pieces both ways, in memory of its own (16 MiB, until it returns), and logs how
/// fast that was. Pieces of 1 MiB and more are the copy engines', unmeasured.
///
/// \param piece_bytes  the smallest that will be copied
/// \return  swap_blocks_cuda's `batched_from`
[[nodiscard]] Expected<std::size_t> calibrate_copies(Device& device, std::size_t piece_bytes,
                                                     const CopyOnDevice& by_kernel,
                                                     const CopyOnDevice& by_batch);

}  // namespace kvhive
