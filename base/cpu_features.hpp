#pragma once
// Which instructions this CPU has. All code asks here. A feature means that the instruction exists,
// not that it is fast.

namespace kvhive {

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;  ///< F, BW, VL and DQ
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;  ///< dot products of bf16 (VDPBF16PS)
  bool amx_bf16 = false;     ///< matrix tiles; the operating system may still deny their use
};

/// Detected at the first call; the same at every call.
const CpuFeatures& cpu_features();

}  // namespace kvhive
