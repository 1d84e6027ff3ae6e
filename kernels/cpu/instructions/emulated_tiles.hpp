#pragma once
// AMX's tiles in plain C++. Included by tiles.hpp.
//
// TDPBF16PS (SDM): for each row and each of 16 dwords two f32 sums, of the even and of the odd
// elements, each from zero by fused multiply-adds in the order of k; then their sum is added to the
// tile. Rounds to nearest even; denormals count as 0, going in and coming out; MXCSR is not looked
// at.

#include <cstdint>
#include <cstring>

#include "kernels/cpu/instructions/emulated_floats.hpp"

namespace kvhive {
namespace emulated_tiles {

struct Tile {
  std::int32_t rows = 0, row_bytes = 0;
  alignas(64) unsigned char bytes[16][64] = {};
};

inline thread_local Tile tiles[8];

static inline void clear(Tile& tile) { std::memset(tile.bytes, 0, sizeof tile.bytes); }

static inline void set_sizes(const TileSizes& sizes) {
  for (int i = 0; i < 8; ++i) {
    tiles[i].rows = sizes.rows[i];
    tiles[i].row_bytes = sizes.row_bytes[i];
    clear(tiles[i]);
  }
}

static inline void load(Tile& tile, const void* from, std::int64_t stride) {
  clear(tile);
  for (std::int32_t r = 0; r < tile.rows; ++r)
    std::memcpy(tile.bytes[r], static_cast<const char*>(from) + r * stride,
                static_cast<std::size_t>(tile.row_bytes));
}

static inline void store(const Tile& tile, void* to, std::int64_t stride) {
  for (std::int32_t r = 0; r < tile.rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tile.bytes[r],
                static_cast<std::size_t>(tile.row_bytes));
}

static inline void add_product(Tile& sums, const Tile& a, const Tile& b) {
  using namespace emulated_floats;
  for (std::int32_t m = 0; m < sums.rows; ++m)
    for (std::int32_t n = 0; n < sums.row_bytes / 4; ++n) {
      float sum, even = 0, odd = 0;
      std::memcpy(&sum, &sums.bytes[m][4 * n], sizeof sum);
      for (std::int32_t k = 0; k < a.row_bytes / 4; ++k) {
        std::uint16_t x[2], y[2];
        std::memcpy(x, &a.bytes[m][4 * k], sizeof x);
        std::memcpy(y, &b.bytes[k][4 * n], sizeof y);
        even = without_denormal(fused(widened(x[0]), widened(y[0]), even));
        odd = without_denormal(fused(widened(x[1]), widened(y[1]), odd));
      }
      sum = without_denormal(without_denormal(sum) + without_denormal(even + odd));
      std::memcpy(&sums.bytes[m][4 * n], &sum, sizeof sum);
    }
}

}  // namespace emulated_tiles
}  // namespace kvhive

#define KVHIVE_SET_TILE_SIZES(sizes) ::kvhive::emulated_tiles::set_sizes(sizes)
#define KVHIVE_RELEASE_TILES() static_cast<void>(0)
#define KVHIVE_TILE_ZERO(t) ::kvhive::emulated_tiles::clear(::kvhive::emulated_tiles::tiles[t])
#define KVHIVE_TILE_LOAD(t, from, stride) \
  ::kvhive::emulated_tiles::load(::kvhive::emulated_tiles::tiles[t], from, stride)
#define KVHIVE_TILE_STORE(t, to, stride) \
  ::kvhive::emulated_tiles::store(::kvhive::emulated_tiles::tiles[t], to, stride)
#define KVHIVE_TILE_ADD_PRODUCT(sums, a, b)                                    \
  ::kvhive::emulated_tiles::add_product(::kvhive::emulated_tiles::tiles[sums], \
                                        ::kvhive::emulated_tiles::tiles[a],    \
                                        ::kvhive::emulated_tiles::tiles[b])
