#pragma once
// A map of the pool in the cells of a terminal.

#include "tools/map/pool_map.hpp"
#include "tools/screen/output_style.hpp"

namespace kvhive {

enum class MapGlyphs : std::uint8_t {
  letters,  ///< a letter for each cell of the map, on its colour where there are colours
  /// Two cells of the map, one above the other, for each character: twice as many, told apart by
  /// colour. The letters of what most cells of a row are stand at its end. Needs colours and UTF-8.
  halves,
};

struct MapLook {
  OutputStyle style;
  MapGlyphs glyphs = MapGlyphs::letters;
};

/// Cells of the map in one row, beside the number of the row's first block: a multiple of 16 where
/// there is room.
std::size_t map_columns(const PoolGeometry& geometry, std::size_t width, MapGlyphs glyphs);

/// The scale at which draw_cells() needs no more than `size`.
std::uint32_t scale_for(const PoolGeometry& geometry, ScreenSize size, MapGlyphs glyphs);

/// The tiers' rows, each with the number of its first block. With two tiers each has a line with
/// its name.
Frame draw_cells(const PoolMap& map, const PoolGeometry& geometry, std::size_t width, MapLook look);

/// "H held by one: 12   S shared: 3   ...": as many rows as it takes.
Frame draw_legend(const PoolMap& map, std::size_t width, MapLook look);

/// "one cell = 4 blocks; small letter or comma: most, not all"
std::string scale_text(const PoolMap& map);

}  // namespace kvhive
