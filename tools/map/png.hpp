#pragma once
#include <string>

#include "base/expected.hpp"
#include "tools/map/drawing.hpp"

namespace kvhive {

/// The drawing as the bytes of a PNG file, 8 bits for each of red, green and blue. Errors:
/// Errc::never_fits if the picture is larger than libpng takes, Errc::out_of_memory.
[[nodiscard]] Expected<std::string> png_of(const Drawing& drawing);

}  // namespace kvhive
