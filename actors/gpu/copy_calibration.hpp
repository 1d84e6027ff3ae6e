#pragma once
// Measures which way of making small copies between the GPU and page-locked memory is faster on
// this machine: the copy engines, where every copy has a fixed cost, or a kernel, which takes SMs
// from the model. Done once, before an engine works.

#include "actors/gpu/device_swapper.hpp"

namespace kvhive {

/// Seconds for the same pieces in each direction.
struct CopyTimes {
  double out = 0, in = 0;
};

/// Whether the kernel is enough faster to be worth the SMs that it takes.
bool kernel_pays(const CopyTimes& kernel, const CopyTimes& batch);

/// Copies scattered pieces in both directions, in memory of its own (16 MiB, freed on return), and
/// logs the speeds. Pieces of 1 MiB and more are not measured: they always go to the copy engines.
///
/// \param piece_bytes the smallest piece that will be copied
/// \return `batched_from` for swap_blocks_cuda
[[nodiscard]] Expected<std::size_t> calibrate_copies(Device& device, std::size_t piece_bytes,
                                                     const CopyOnDevice& by_kernel,
                                                     const CopyOnDevice& by_batch);

}  // namespace kvhive
