#pragma once
// What this CPU can do, asked for in one place. A feature says that an instruction exists, not that
// it is fast.

namespace kvhive {

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;  ///< F, BW, VL and DQ
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;  ///< dot products of bf16 (VDPBF16PS)
  bool amx_bf16 = false;  ///< tiles; whether the kernel lets a process use them is not asked here
};

/// The same at every call.
const CpuFeatures& cpu_features();

}  // namespace kvhive
