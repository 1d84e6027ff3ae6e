#pragma once
// Frames as bytes for a terminal.

#include <string>

#include "tools/screen/output_style.hpp"

namespace kvhive {

/// The frame as lines of text, with colours if there are any: for output that is printed once.
std::string printed(const Frame& frame, Colours colours);

/// The bytes that turn what a terminal shows, `before`, into `now`: only lines that differ are
/// written. Null, or a frame of another size: everything is.
std::string repainted(const Frame* before, const Frame& now, Colours colours);

}  // namespace kvhive
