#pragma once
// The intrinsics of AVX-512, or the same in plain C++ (README.md).

#include <immintrin.h>

#ifdef KVHIVE_EMULATED
#include "kernels/cpu/instructions/emulated_vectors.hpp"
#endif

/// What a kernel that is compiled for such instructions is called after.
#if defined(KVHIVE_EMULATED) && defined(KVHIVE_MULTIPLIED)
#define KVHIVE_INSTRUCTIONS emulated_multiplied
#elif defined(KVHIVE_EMULATED)
#define KVHIVE_INSTRUCTIONS emulated
#elif defined(KVHIVE_MULTIPLIED)
#define KVHIVE_INSTRUCTIONS multiplied
#else
#define KVHIVE_INSTRUCTIONS native
#endif
