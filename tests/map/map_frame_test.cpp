#include "tools/map/map_frame.hpp"

#include <gtest/gtest.h>

#include "tests/map/sample_map.hpp"
#include "tools/screen/paint.hpp"

namespace kvhive::testing {
namespace {

constexpr MapLook kPlainLook{{Colours::none, Letters::ascii}, MapGlyphs::letters};
constexpr MapLook kColourLook{{Colours::all, Letters::utf8}, MapGlyphs::letters};
constexpr MapLook kDenseLook{{Colours::all, Letters::utf8}, MapGlyphs::halves};

TEST(MapFrame, RowsBeginWithTheNumberOfTheirFirstBlock) {
  const std::string states(40, 'H');
  EXPECT_EQ(draw_cells(map_of(states), geometry_of(40), 20, kPlainLook).text(),
            " 1 HHHHHHHHHHHHHHHH\n"
            "17 HHHHHHHHHHHHHHHH\n"
            "33 HHHHHHHH\n");
}

TEST(MapFrame, TwoTiersHaveTheirNames) {
  EXPECT_EQ(draw_cells(map_of("H.", "I"), geometry_of(2, 1), 20, kPlainLook).text(),
            "device tier\n1 H.\nhost tier\n3 I\n");
}

TEST(MapFrame, FitsTheSizeItsScaleWasChosenFor) {
  for (const std::uint32_t blocks : {1u, 100u, 5000u, 300'000u})
    for (const ScreenSize size : {ScreenSize{80, 18}, ScreenSize{20, 3}, ScreenSize{200, 50}}) {
      const std::uint32_t host = blocks / 3;
      for (const MapGlyphs glyphs : {MapGlyphs::letters, MapGlyphs::halves}) {
        const PoolGeometry geometry = geometry_of(blocks, host);
        const PoolMap map = map_of(std::string(blocks, 'I'), std::string(host, '.'),
                                   scale_for(geometry, size, glyphs));
        const Frame frame = draw_cells(map, geometry, size.width, {kDenseLook.style, glyphs});
        EXPECT_LE(frame.size().height, std::max<std::size_t>(size.height, host != 0 ? 4 : 1));
        EXPECT_EQ(frame.size().width, size.width);
      }
    }
}

TEST(MapFrame, ALetterStandsOnEachColour) {
  const Frame frame = draw_cells(map_of("HI."), geometry_of(3), 20, kColourLook);
  EXPECT_EQ(frame.text(), "1 HI.\n");
  EXPECT_TRUE(frame.at(0, 2).style.ground.has_value());
  EXPECT_NE(frame.at(0, 2).style.ground, frame.at(0, 3).style.ground);
  EXPECT_FALSE(frame.at(0, 4).style.ground.has_value()) << "free is the terminal's own ground";
}

TEST(MapFrame, HalvesShowTwoRowsInOneAndNameThemAtTheEnd) {
  const std::string states = std::string(16, 'H') + std::string(16, 'I') + std::string(4, '.');
  const Frame frame = draw_cells(map_of(states), geometry_of(36), 23, kDenseLook);
  ASSERT_EQ(frame.size().height, 2u);
  EXPECT_EQ(frame.at(0, 3).letter, U'\u2580');
  EXPECT_EQ(frame.at(0, 3).style.ink, map_of("H").categories[2].colour);
  EXPECT_EQ(frame.at(0, 3).style.ground, map_of("I").categories[4].colour);
  EXPECT_EQ(frame.at(0, 20).letter, U'H');
  EXPECT_EQ(frame.at(0, 21).letter, U'I');
  EXPECT_FALSE(frame.at(1, 3).style.ground.has_value()) << "nothing is below the last row";
}

TEST(MapFrame, TheLegendWrapsAndCounts) {
  EXPECT_EQ(draw_legend(map_of(".HHS"), 40, kPlainLook).text(),
            ". free: 1   F filling: 0\n"
            "H held by one: 2   S shared: 1\n"
            "I idle (cached): 0   X retired: 0\n");
}

TEST(MapFrame, TheScaleSaysWhatASmallLetterIs) {
  EXPECT_EQ(scale_text(map_of("HI")), "one cell = 1 block");
  EXPECT_EQ(scale_text(map_of("HIHI", "", 2)),
            "one cell = 2 blocks; small letter or comma: most, not all");
  EXPECT_EQ(scale_text(map_of("HIHI", "", 2, MapBy::owner)),
            "one cell = 2 blocks, shown as most of them are");
}

}  // namespace
}  // namespace kvhive::testing
