#pragma once
// The arithmetics of the CPU backend. Each adds in an order of its own, so KV that one of them
// wrote is continued, bit by bit, only by itself: a pool has one (PoolGeometry::cpu_kernels).

#include <array>
#include <cstdint>
#include <string_view>

namespace kvhive {

/// By ascending demands on the CPU. The numbers are stored in pools.
enum class CpuKernels : std::uint8_t {
  sse4 = 0,         ///< f32 in vectors of 4, and what older CPUs make of them
  avx2 = 1,         ///< f32 in vectors of 8, with fused multiply-add
  avx512 = 2,       ///< f32 in vectors of 16
  avx512_bf16 = 3,  ///< bf16 dot products (VDPBF16PS)
  amx = 4,          ///< bf16 tiles (TDPBF16PS)
};

inline constexpr std::array kAllCpuKernels{CpuKernels::sse4, CpuKernels::avx2, CpuKernels::avx512,
                                           CpuKernels::avx512_bf16, CpuKernels::amx};

/// As `--cpu-kernels` takes it.
constexpr std::string_view to_string(CpuKernels kernels) {
  switch (kernels) {
    case CpuKernels::sse4: return "sse4";
    case CpuKernels::avx2: return "avx2";
    case CpuKernels::avx512: return "avx512";
    case CpuKernels::avx512_bf16: return "avx512-bf16";
    case CpuKernels::amx: return "amx";
  }
  return "unknown";
}

}  // namespace kvhive
