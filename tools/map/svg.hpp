#pragma once
#include <string>

#include "tools/map/drawing.hpp"

namespace kvhive {

/// The drawing as an SVG document. Boxes of one colour are one path, so that a large map stays a
/// small file.
std::string svg_of(const Drawing& drawing);

}  // namespace kvhive
