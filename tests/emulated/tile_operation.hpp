#pragma once
// One operation on tiles and one on vectors, by the hardware and emulated. Dot products also by
// multiplications.

#include <cstdint>

namespace kvhive {

/// Tiles as they lie in memory, 16 lines of 64 bytes each.
struct TileOperation {
  std::int32_t rows = 16, columns = 16, pairs = 16;
  alignas(64) unsigned char sums[1024];
  alignas(64) unsigned char a[1024];
  alignas(64) unsigned char b[1024];
};

namespace native {
/// sums += a * b.
void multiply_tiles(TileOperation& operation);
/// The first line of sums += the pairs of the first lines of a and b.
void multiply_pairs(TileOperation& operation);
/// The first line of sums, to bf16, in the first half of the first line of a.
void narrow(TileOperation& operation);
}  // namespace native

namespace multiplied {
void multiply_pairs(TileOperation& operation);
}
namespace emulated_multiplied {
void multiply_pairs(TileOperation& operation);
}

namespace emulated {
void multiply_tiles(TileOperation& operation);
void multiply_pairs(TileOperation& operation);
void narrow(TileOperation& operation);
}  // namespace emulated

}  // namespace kvhive
