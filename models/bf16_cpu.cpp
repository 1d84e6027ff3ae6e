#include "models/bf16_product.hpp"

#include <cpuid.h>

namespace kvhive {
namespace {

/// Not by __builtin_cpu_supports: clang 14 does not know the name.
bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
}

}  // namespace

// Not in bf16_product.cpp, which any other CPU must not run a line of.
bool prefers_bf16_product() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && !has_amx_bf16();
}

}  // namespace kvhive
