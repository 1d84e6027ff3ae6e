#pragma once
// Which instructions this CPU has, and the kernel of the operating system lets this process use.
// All code asks here. A feature means that the instruction may be used, not that it is fast.

namespace kvhive {

struct CpuFeatures {
  bool avx2 = false;    ///< with FMA and F16C
  bool avx512 = false;  ///< F, BW, VL and DQ
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;  ///< dot products of bf16 (VDPBF16PS)
  bool amx_bf16 = false;     ///< matrix tiles, and the permission to use them
  bool amx_refused = false;  ///< the CPU has them, but the kernel does not permit them
};

/// Detected at the first call; the same at every call. Asks the kernel for the permission to use
/// tiles, which is the process's and all its threads' from then on.
const CpuFeatures& cpu_features();

}  // namespace kvhive
