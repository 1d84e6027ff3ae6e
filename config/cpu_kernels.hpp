#pragma once
// The arithmetics of the CPU backend. Each adds in an order of its own, so KV that one of them
// wrote is continued, bit by bit, only by itself: a pool has one (PoolGeometry::cpu_kernels).

#include <array>
#include <cstdint>
#include <optional>
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

constexpr std::array<std::string_view, 5> names_of(CpuKernels) {
  return {"sse4", "avx2", "avx512", "avx512-bf16", "amx"};
}
/// Also of what another process sent.
constexpr std::string_view to_string(CpuKernels kernels) {
  return kernels <= CpuKernels::amx ? names_of(kernels)[static_cast<std::size_t>(kernels)]
                                    : "unknown kernels";
}

/// As `--cpu-kernels` takes it; `automatic` = the fastest that CPU and kernel grant.
enum class RequestedCpuKernels : std::uint8_t { automatic, sse4, avx2, avx512, avx512_bf16, amx };
constexpr std::array<std::string_view, 6> names_of(RequestedCpuKernels) {
  return {"auto", "sse4", "avx2", "avx512", "avx512-bf16", "amx"};
}
/// Nothing if it is `automatic`.
constexpr std::optional<CpuKernels> named_kernels(RequestedCpuKernels requested) {
  if (requested == RequestedCpuKernels::automatic) return std::nullopt;
  return static_cast<CpuKernels>(static_cast<int>(requested) - 1);
}
constexpr RequestedCpuKernels request_for(CpuKernels kernels) {
  return static_cast<RequestedCpuKernels>(static_cast<int>(kernels) + 1);
}

}  // namespace kvhive
