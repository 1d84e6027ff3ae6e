#pragma once
// The intrinsics of AVX-512, or the same in plain C++ (README.md).

#include <immintrin.h>

#ifdef KVHIVE_EMULATED
#include "kernels/cpu/instructions/emulated_vectors.hpp"
/// What a kernel that is compiled for such instructions is called after.
#define KVHIVE_INSTRUCTIONS emulated
#else
#define KVHIVE_INSTRUCTIONS native
#endif
