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

std::string missing_for(CpuKernels kernels) {
  if (grants(kernels)) return "";
  switch (kernels) {
    case CpuKernels::sse4: return "";
    case CpuKernels::avx2: return "this CPU has no AVX2 with FMA";
    case CpuKernels::avx512: return "this CPU has no AVX-512 (F, BW, VL, DQ)";
    case CpuKernels::avx512_bf16: return "this CPU has no AVX-512 with BF16 and VBMI";
    case CpuKernels::amx:
      return cpu_features().amx_refused ? "the kernel does not permit this process to use AMX tiles"
                                        : "this CPU has no AMX with bf16";
  }
  return "unknown";
}

Expected<CpuKernels> choose_cpu_kernels(RequestedCpuKernels requested) {
  const CpuKernels best = best_cpu_kernels();
  const CpuKernels wanted = named_kernels(requested).value_or(best);
  if (grants(wanted)) return wanted;
  return failure(Errc::unsupported, "cpu-kernels '" + std::string(to_string(wanted)) +
                                        "': " + missing_for(wanted) + "; use " +
                                        std::string(to_string(best)) + " or auto");
}

CpuKernels cpu_kernels() { return chosen(); }

void use_cpu_kernels(CpuKernels kernels) {
  chosen() = kernels;
  hwy::DisableTargets(targets_beyond(kernels));
  hwy::GetChosenTarget().DeInit();
}

}  // namespace kvhive
