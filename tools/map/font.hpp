#pragma once
// The letters of pictures: printable ASCII in 5 x 8 dots, drawn for this program, so that a picture
// does not depend on the fonts of the machine. The last row is below the line.

#include <array>
#include <cstdint>

namespace kvhive {

inline constexpr int kGlyphColumns = 5, kGlyphRows = 8;

struct Glyph {
  std::array<std::uint8_t, kGlyphRows> rows;  ///< from above; the highest of five bits is left

  constexpr bool has(int column, int row) const {
    return (rows[static_cast<std::size_t>(row)] >> (kGlyphColumns - 1 - column) & 1) != 0;
  }
};

/// Of other characters: that of '?'.
const Glyph& glyph_of(char letter);

}  // namespace kvhive
