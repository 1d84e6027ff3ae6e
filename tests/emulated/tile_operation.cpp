#include "tests/emulated/tile_operation.hpp"

#include "kernels/cpu/instructions/tiles.hpp"
#include "kernels/cpu/instructions/vectors.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {

void multiply_tiles(TileOperation& operation) {
  TileSizes sizes;
  sizes.rows[0] = sizes.rows[1] = static_cast<std::uint8_t>(operation.rows);
  sizes.row_bytes[0] = sizes.row_bytes[2] = static_cast<std::uint16_t>(4 * operation.columns);
  sizes.row_bytes[1] = static_cast<std::uint16_t>(4 * operation.pairs);
  sizes.rows[2] = static_cast<std::uint8_t>(operation.pairs);
  KVHIVE_SET_TILE_SIZES(sizes);
  KVHIVE_TILE_LOAD(0, operation.sums, 64);
  KVHIVE_TILE_LOAD(1, operation.a, 64);
  KVHIVE_TILE_LOAD(2, operation.b, 64);
  KVHIVE_TILE_ADD_PRODUCT(0, 1, 2);
  KVHIVE_TILE_STORE(0, operation.sums, 64);
  KVHIVE_RELEASE_TILES();
}

void narrow(TileOperation& operation) {
  const __m512 values = _mm512_load_ps(reinterpret_cast<const float*>(operation.sums));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(operation.a), (__m256i)_mm512_cvtneps_pbh(values));
}

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
