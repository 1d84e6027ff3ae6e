#pragma once
// What the output (a terminal, a pipe or a file) can show: from TERM, NO_COLOR, COLORTERM and the
// locale.

#include <cstdint>

#include "tools/screen/frame.hpp"

namespace kvhive {

enum class Colours : std::uint8_t {
  none,
  basic,  ///< 16
  many,   ///< 256
  all,    ///< 24 bits
};

enum class Letters : std::uint8_t { ascii, utf8 };

struct OutputStyle {
  Colours colours = Colours::none;
  Letters letters = Letters::ascii;
};

/// What the environment says of a terminal, or of a pipe or file: those get no colours.
OutputStyle style_of_environment(bool is_terminal);

/// Whether TERM is unset or "dumb": such a terminal cannot move its cursor.
bool is_dumb_terminal();

/// The terminal's size; 80 x 24 where it is not known or no terminal.
ScreenSize size_of_terminal(int fd);

}  // namespace kvhive
