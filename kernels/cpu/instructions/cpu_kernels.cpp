#include "kernels/cpu/instructions/cpu_kernels.hpp"

#include <atomic>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include "kernels/cpu/instructions/cpu_features.hpp"

namespace kvhive {
namespace {

std::atomic<CpuKernels>& chosen() {
  static std::atomic<CpuKernels> kernels = best_cpu_kernels();
  return kernels;
}

/// What Highway must not use, so that its vectors have the arithmetic's length. Its targets are
/// bits; better ones have lower bits.
std::int64_t targets_beyond(CpuKernels kernels) {
  switch (kernels) {
    case CpuKernels::sse4: return 2 * HWY_AVX2 - 1;
    case CpuKernels::avx2: return 2 * HWY_AVX3 - 1;
    default: return 0;
  }
}

}  // namespace

bool grants(CpuKernels kernels) {
  const CpuFeatures& cpu = cpu_features();
  switch (kernels) {
    case CpuKernels::sse4: return true;
    case CpuKernels::avx2: return cpu.avx2;
    case CpuKernels::avx512: return cpu.avx512;
    case CpuKernels::avx512_bf16: return cpu.avx512_vbmi && cpu.avx512_bf16;
    case CpuKernels::amx: return grants(CpuKernels::avx512_bf16) && cpu.amx_bf16;
  }
  return false;
}

CpuKernels best_cpu_kernels() {
  CpuKernels best = CpuKernels::sse4;
  for (const CpuKernels kernels : kAllCpuKernels)
    if (grants(kernels)) best = kernels;
  return best;
}

CpuKernels cpu_kernels() { return chosen(); }

void use_cpu_kernels(CpuKernels kernels) {
  chosen() = kernels;
  hwy::DisableTargets(targets_beyond(kernels));
  hwy::GetChosenTarget().DeInit();
}

}  // namespace kvhive
