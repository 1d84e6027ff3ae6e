#pragma once
// A picture of boxes and labels, in pixels from the upper left corner. SVG and PNG are written from
// it, so both show the same.

#include <string>
#include <vector>

#include "tools/screen/colour.hpp"

namespace kvhive {

/// A letter of a label is 6 x 9 pixels, times the label's scale; the last column and row are gaps,
/// and capitals are 7 high.
inline constexpr int kLetterWidth = 6, kLetterHeight = 9, kCapitalHeight = 7;

struct Drawing {
  struct Box {
    int x, y, width, height;
    Colour colour;
  };
  struct Label {
    int x, y;  ///< of its upper left corner
    int scale;
    Colour colour;
    std::string text;  ///< ASCII
  };

  int width = 0, height = 0;
  std::vector<Box> boxes;     ///< later ones cover earlier ones
  std::vector<Label> labels;  ///< above all boxes
};

}  // namespace kvhive
