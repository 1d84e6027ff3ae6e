#include "tools/map/png.hpp"

#include <png.h>

#include <algorithm>
#include <vector>

#include "tools/map/font.hpp"

namespace kvhive {
namespace {

/// Rows of pixels, three bytes each.
class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width),
        height_(height),
        bytes_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3) {}

  void fill(int x, int y, int width, int height, Colour colour) {
    for (int row = std::max(y, 0); row < std::min(y + height, height_); ++row)
      for (int column = std::max(x, 0); column < std::min(x + width, width_); ++column) {
        std::uint8_t* pixel = &bytes_[static_cast<std::size_t>(row * width_ + column) * 3];
        pixel[0] = colour.red;
        pixel[1] = colour.green;
        pixel[2] = colour.blue;
      }
  }

  void write(const Drawing::Label& label) {
    int x = label.x;
    for (const char letter : label.text) {
      const Glyph& glyph = glyph_of(letter);
      for (int row = 0; row < kGlyphRows; ++row)
        for (int column = 0; column < kGlyphColumns; ++column)
          if (glyph.has(column, row))
            fill(x + column * label.scale, label.y + row * label.scale, label.scale, label.scale,
                 label.colour);
      x += kLetterWidth * label.scale;
    }
  }

  const std::uint8_t* data() const { return bytes_.data(); }

 private:
  int width_, height_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace

Expected<std::string> png_of(const Drawing& drawing) {
  Canvas canvas(drawing.width, drawing.height);
  for (const Drawing::Box& box : drawing.boxes)
    canvas.fill(box.x, box.y, box.width, box.height, box.colour);
  for (const Drawing::Label& label : drawing.labels) canvas.write(label);

  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(drawing.width);
  image.height = static_cast<png_uint_32>(drawing.height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string png(bytes, '\0');
  if (png_image_write_to_memory(&image, png.data(), &bytes, 0, canvas.data(), 0, nullptr) == 0)
    return failure(Errc::never_fits, "a picture of " + std::to_string(drawing.width) + " x " +
                                         std::to_string(drawing.height) +
                                         " pixels cannot be written (" + image.message +
                                         "); take a larger --blocks-per-cell");
  png.resize(bytes);
  return png;
}

}  // namespace kvhive
