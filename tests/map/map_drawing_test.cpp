// The map as pictures: what stands at a cell's pixels, and whether the files are what they claim.

#include "tools/map/map_drawing.hpp"

#include <gtest/gtest.h>
#include <png.h>

#include <algorithm>
#include <cstdio>

#include "tests/map/sample_map.hpp"
#include "tools/map/png.hpp"
#include "tools/map/svg.hpp"

namespace kvhive::testing {
namespace {

/// A PNG, decoded by libpng.
class Picture {
 public:
  explicit Picture(const std::string& png) {
    image_.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image_, png.data(), png.size()) == 0) return;
    image_.format = PNG_FORMAT_RGB;
    pixels_.resize(PNG_IMAGE_SIZE(image_));
    is_good_ = png_image_finish_read(&image_, nullptr, pixels_.data(), 0, nullptr) != 0;
  }
  bool is_good() const { return is_good_; }
  int width() const { return static_cast<int>(image_.width); }
  int height() const { return static_cast<int>(image_.height); }
  bool has(int x, int y, Colour colour) const {
    const std::uint8_t* p = &pixels_[static_cast<std::size_t>(y * width() + x) * 3];
    return p[0] == colour.red && p[1] == colour.green && p[2] == colour.blue;
  }

 private:
  png_image image_{};
  std::vector<std::uint8_t> pixels_;
  bool is_good_ = false;
};

/// The left upper corner of the first cell: where the first row's number stands beside it.
std::pair<int, int> first_cell(const Drawing& drawing) {
  const auto box = std::find_if(drawing.boxes.begin() + 1, drawing.boxes.end(),
                                [](const Drawing::Box& b) { return b.width > 0; });
  return {box->x, box->y};
}

Colour colour_of(const PoolMap& map, char letter) {
  for (const MapCategory& category : map.categories)
    if (category.letter == letter) return category.colour;
  return {};
}

TEST(MapPng, DecodesToTheColoursOfItsCells) {
  std::string states(70, 'I');
  states[1] = 'H';
  states[2] = '.';
  states[64] = 'S';  // the first of the second row
  const PoolMap map = map_of(states);
  const Drawing drawing = draw_map(map, "a pool");
  const auto png = png_of(drawing);
  ASSERT_TRUE(png.has_value()) << png.error().text;
  const Picture picture(*png);
  ASSERT_TRUE(picture.is_good());
  EXPECT_EQ(picture.width(), drawing.width);
  EXPECT_EQ(picture.height(), drawing.height);
  const auto [x, y] = first_cell(drawing);
  const int side = grid_for(states.size()).side;
  EXPECT_TRUE(picture.has(x + 1, y + 1, colour_of(map, 'I')));
  EXPECT_TRUE(picture.has(x + side + 1, y + 1, colour_of(map, 'H')));
  EXPECT_TRUE(picture.has(x + 2 * side + 1, y + 1, colour_of(map, '.')));
  EXPECT_TRUE(picture.has(x + 1, y + side + 1, colour_of(map, 'S')));
  EXPECT_TRUE(picture.has(x + side - 1, y + 1, {255, 255, 255, 15})) << "the gap between cells";
  EXPECT_TRUE(picture.has(x + 10 * side + 1, y + side + 1, {255, 255, 255, 15}))
      << "behind the last";
}

TEST(MapPng, ACellOfSeveralBlocksIsDividedAsTheyAre) {
  const PoolMap map = map_of("HHII", "", 4);
  const Drawing drawing = draw_map(map, "");
  const Picture picture(png_of(drawing).value());
  const auto [x, y] = first_cell(drawing);
  const int side = grid_for(1).side;
  EXPECT_TRUE(picture.has(x + 1, y + 1, colour_of(map, 'H')));
  EXPECT_TRUE(picture.has(x + side - 3, y + 1, colour_of(map, 'I')));
}

/// A letter's ink is within its cell.
TEST(MapPng, ALetterStandsInItsCell) {
  const PoolMap map = map_of("H");
  const Drawing drawing = draw_map(map, "");
  const Picture picture(png_of(drawing).value());
  const auto [x, y] = first_cell(drawing);
  int ink = 0;
  for (int dy = 0; dy < 19; ++dy)
    for (int dx = 0; dx < 19; ++dx) ink += picture.has(x + dx, y + dy, ink_on(colour_of(map, 'H')));
  EXPECT_GT(ink, 40);
}

TEST(MapDrawing, ALargePoolStaysAPictureOfUsualSize) {
  const PoolMap map = map_of(std::string(4096 * 3, 'I'), "", 4);
  const Drawing drawing = draw_map(map, "a pool");
  EXPECT_LT(drawing.width, 1200);
  EXPECT_LT(drawing.height, 1200);
  for (const Drawing::Box& box : drawing.boxes) {
    EXPECT_GE(box.x, 0);
    EXPECT_LE(box.x + box.width, drawing.width);
    EXPECT_LE(box.y + box.height, drawing.height);
  }
}

TEST(MapSvg, IsWellFormedAndSaysWhatTheLegendSays) {
  PoolMap map = map_of(".FHSIX", "II");
  map.categories[0].name = "free & <\"odd\">";
  const std::string svg = svg_of(draw_map(map, "pool of a model named \xC3\xA4\033"));
  EXPECT_EQ(svg.find('\033'), std::string::npos);
  EXPECT_NE(svg.find("idle (cached): 3"), std::string::npos);
  EXPECT_NE(svg.find("host tier: 2 blocks"), std::string::npos);
  FILE* parser = popen(KVHIVE_PYTHON
                       " -c 'import sys, xml.dom.minidom as m\n"
                       "d = m.parseString(sys.stdin.buffer.read())\n"
                       "sys.exit(d.documentElement.tagName != \"svg\" or "
                       "len(d.getElementsByTagName(\"path\")) != 7)'",
                       "w");
  ASSERT_NE(parser, nullptr);
  ASSERT_EQ(fwrite(svg.data(), 1, svg.size(), parser), svg.size());
  EXPECT_EQ(pclose(parser), 0) << "the paper and a path for each of six colours\n" << svg;
}

}  // namespace
}  // namespace kvhive::testing
