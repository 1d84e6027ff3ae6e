#include "kernels/cpu/instructions/cpu_features.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvhive {
namespace {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(unsigned leaf) {
  Cpuid found;
  __get_cpuid_count(leaf, 0, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}

/// The states that the kernel saves and restores (XCR0).
unsigned saved_states() {
  constexpr unsigned kOsxsave = 1u << 27;
  if ((cpuid(1).ecx & kOsxsave) == 0) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/// Linux saves the 8 KiB of tiles only for processes that have asked for them; it refuses where an
/// alternate signal stack is too small for them.
bool may_use_tiles() {
  constexpr unsigned kTileConfigAndData = 3u << 17;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return (saved_states() & kTileConfigAndData) == kTileConfigAndData &&
         ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Asks CPUID: clang 14's __builtin_cpu_supports does not know these features.
bool has_bf16_tiles() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr unsigned kBoth = kAmxBf16 | kAmxTile;
  return (cpuid(7).edx & kBoth) == kBoth;
}

CpuFeatures ask() {
  CpuFeatures found;
  found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  found.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  found.avx512_vbmi = found.avx512 && __builtin_cpu_supports("avx512vbmi");
  found.avx512_bf16 = found.avx512 && __builtin_cpu_supports("avx512bf16");
  const bool has_tiles = found.avx512_bf16 && has_bf16_tiles();
  found.amx_bf16 = has_tiles && may_use_tiles();
  found.amx_refused = has_tiles && !found.amx_bf16;
  return found;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = ask();
  return features;
}

}  // namespace kvhive
