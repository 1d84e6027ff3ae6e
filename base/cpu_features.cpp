#include "base/cpu_features.hpp"

#include <cpuid.h>

namespace kvhive {
namespace {

/// Asks CPUID: clang 14's __builtin_cpu_supports does not know this feature.
bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
}

CpuFeatures ask() {
  CpuFeatures found;
  found.avx2 = __builtin_cpu_supports("avx2");
  found.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  found.avx512_vbmi = found.avx512 && __builtin_cpu_supports("avx512vbmi");
  found.avx512_bf16 = found.avx512 && __builtin_cpu_supports("avx512bf16");
  found.amx_bf16 = has_amx_bf16();
  return found;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = ask();
  return features;
}

}  // namespace kvhive
