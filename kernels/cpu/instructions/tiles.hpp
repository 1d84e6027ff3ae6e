#pragma once
// The operations on tiles (AMX) that kernels use, or the same in plain C++ (README.md). Tiles are
// numbered 0 to 7 by literals. A thread sets their sizes, uses them, and releases them.
//
// TDPBF16PS takes a tile of sums [rows][16], a [rows][32 bf16] and b [16 pairs][16][2 bf16]: sums
// += a * b. Sizes below these are allowed.

#include <cstdint>

namespace kvhive {

/// What LDTILECFG reads: palette 1, and for each tile the number of rows and the bytes of a row.
struct TileSizes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileSizes) == 64);

}  // namespace kvhive

#ifdef KVHIVE_EMULATED
#include "kernels/cpu/instructions/emulated_tiles.hpp"
#else

// The intrinsics of gcc 12 do not say which memory they read and write (_tile_loadconfig: only 8 of
// the 64 bytes), so stores before them may be dropped. These say it.
#define KVHIVE_SET_TILE_SIZES(sizes) asm volatile("ldtilecfg %0" ::"m"(sizes) : "memory")
#define KVHIVE_RELEASE_TILES() asm volatile("tilerelease")
#define KVHIVE_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define KVHIVE_TILE_LOAD(t, from, stride)                                  \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void*)(from)), \
               "r"((std::int64_t)(stride))                                 \
               : "memory")
#define KVHIVE_TILE_STORE(t, to, stride)                                                           \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void*)(to)), "r"((std::int64_t)(stride)) \
               : "memory")
#define KVHIVE_TILE_ADD_PRODUCT(sums, a, b) \
  asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums ::)

#endif
