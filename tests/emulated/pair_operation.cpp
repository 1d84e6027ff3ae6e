#include "kernels/cpu/instructions/dots.hpp"
#include "tests/emulated/tile_operation.hpp"

namespace kvhive {
namespace KVHIVE_INSTRUCTIONS {

void multiply_pairs(TileOperation& operation) {
  const WithoutDenormals none;
  const __m512 sums = _mm512_load_ps(reinterpret_cast<const float*>(operation.sums));
  const DotPairs a = pairs_of(_mm512_load_si512(operation.a));
  const DotPairs b = pairs_of(_mm512_load_si512(operation.b));
  _mm512_store_ps(reinterpret_cast<float*>(operation.sums), add_dots(sums, a, b));
}

}  // namespace KVHIVE_INSTRUCTIONS
}  // namespace kvhive
