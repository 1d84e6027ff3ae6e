#pragma once
// A colour, as pictures and terminals of every kind show it.

#include <cstdint>

namespace kvhive {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
  /// The nearest of the 16 colours that every colour terminal has; 8 and more are the bright ones.
  std::uint8_t basic = 0;

  friend constexpr bool operator==(Colour, Colour) = default;
};

/// Black or white, whichever is easier to read on `ground`.
constexpr Colour ink_on(Colour ground) {
  // Weights of the eye for red, green and blue (ITU-R BT.601).
  const int luma = (299 * ground.red + 587 * ground.green + 114 * ground.blue) / 1000;
  return luma > 120 ? Colour{0, 0, 0, 0} : Colour{255, 255, 255, 15};
}

}  // namespace kvhive
