#pragma once
// The arithmetic that this process computes with on the CPU. Set once, before anything is computed:
// by an engine to that of its pool. It decides bits, so what else is chosen for speed must not.

#include <string>

#include "base/expected.hpp"
#include "config/cpu_kernels.hpp"

namespace kvhive {

/// Whether this CPU has the instructions, and this process may use them.
bool grants(CpuKernels kernels);

/// The one that is fastest on CPUs that grant it: tiles before dot products before wide floats.
CpuKernels best_cpu_kernels();

/// What the CPU lacks for them, or the kernel does not permit; empty if they are granted.
std::string missing_for(CpuKernels kernels);

/// The ones that are asked for, or the best. Errors: they are not granted; the text says why, and
/// which are.
[[nodiscard]] Expected<CpuKernels> choose_cpu_kernels(RequestedCpuKernels requested);

/// The one in use; best_cpu_kernels() unless another was set.
CpuKernels cpu_kernels();

/// \pre grants(kernels), or its instructions are emulated; nothing is being computed
void use_cpu_kernels(CpuKernels kernels);

}  // namespace kvhive
