#pragma once
// A map of the pool as a picture.

#include <cstdint>
#include <string>

#include "tools/map/drawing.hpp"
#include "tools/map/pool_map.hpp"

namespace kvhive {

/// Cells that a picture of a usual size has at most.
inline constexpr std::uint32_t kPictureCells = 4096;

/// Cells in a row of a picture of `cells` cells, and a cell's side in pixels, its gap included.
struct PictureGrid {
  std::uint32_t columns;
  int side;
  bool has_letters;  ///< a cell is large enough for one
};
PictureGrid grid_for(std::size_t cells);

/// Title, cells, legend. A cell of several blocks is divided, from left to right, as its blocks
/// are; its letter is that of most.
Drawing draw_map(const PoolMap& map, const std::string& title);

}  // namespace kvhive
