#include "tools/top/grid.hpp"

#include <gtest/gtest.h>

#include "tools/top/panes.hpp"

namespace kvhive::testing {
namespace {

Grid sample_grid() {
  Grid grid;
  grid.columns = {{"name", 6, false, 0}, {"count", 6, true, 1}, {"note", 5, false, 2}};
  for (const auto& [name, count, note] : std::vector<std::tuple<const char*, int, const char*>>{
           {"beta", 5, "x"}, {"alpha", 12, "y"}, {"gamma", 5, "Zed"}})
    grid.rows.push_back({{{name, 0}, {std::to_string(count), double(count)}, {note, 0}}, true});
  return grid;
}

std::string names_of(const Grid& grid) {
  std::string names;
  for (const GridRow& row : grid.rows) names += row.cells[0].text.substr(0, 1);
  return names;
}

TEST(Grid, SortsNumbersFromTheLargestAndTextsFromA) {
  Grid grid = sample_grid();
  grid.sort(0, false);
  EXPECT_EQ(names_of(grid), "abg");
  grid.sort(0, true);
  EXPECT_EQ(names_of(grid), "gba");
  grid = sample_grid();
  grid.sort(1, false);
  EXPECT_EQ(names_of(grid), "abg") << "12 before 5; equal ones stay in their order";
  grid.sort(1, true);
  EXPECT_EQ(names_of(grid), "bga");
}

TEST(Grid, FiltersByAnyCellInCapitalsOrNot) {
  Grid grid = sample_grid();
  grid.filter("ZE");
  EXPECT_EQ(names_of(grid), "g");
  grid.filter("nowhere");
  EXPECT_EQ(grid.rows.size(), 0u);
}

TEST(Grid, NarrowItLosesItsLeastImportantColumnsFirst) {
  const Grid grid = sample_grid();
  EXPECT_EQ(grid.columns_for(19).size(), 3u) << "6 + 6 + 5 and two gaps";
  EXPECT_EQ(grid.columns_for(18), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(grid.columns_for(3), (std::vector<std::size_t>{0})) << "one stays";
}

TEST(Grid, NumbersAreAlignedAtTheRight) {
  Frame frame({20, 4});
  draw_grid(frame, 0, 4, sample_grid(), 0, 1);
  EXPECT_EQ(frame.text(),
            "name   *count note\n"
            "beta        5 x\n"
            "alpha      12 y\n"
            "gamma       5 Zed\n");
}

TEST(Grid, SaysHowManyRowsAreNotShown) {
  Frame frame({50, 3});
  draw_grid(frame, 0, 3, sample_grid(), 0, std::nullopt);
  EXPECT_EQ(frame.text(),
            "name    count note\n"
            "beta        5 x\n"
            "... 2 of 3 rows are not shown (up, down)\n");
  Frame scrolled({50, 3});
  draw_grid(scrolled, 0, 3, sample_grid(), 99, std::nullopt);
  EXPECT_NE(scrolled.text().find("gamma"), std::string::npos) << "no further than the last row";
}

TEST(ShortNumber, HasAtMostFiveCharacters) {
  const std::pair<double, const char*> cases[] = {
      {0, "0"},        {0.25, "0.2"},     {7, "7"},         {9.96, "10"},      {57.4, "57"},
      {999, "999"},    {1234, "1,234"},   {9999, "9,999"},  {9999.6, "10.0k"}, {12345, "12.3k"},
      {99960, "100k"}, {1048576, "1.0M"}, {999600, "1.0M"}, {5e9, "5.0G"}};
  for (const auto& [number, text] : cases) {
    EXPECT_EQ(short_number(number), text) << number;
    EXPECT_LE(short_number(number).size(), 5u) << number;
  }
}

TEST(Duration, IsReadAtAGlance) {
  EXPECT_EQ(duration(753), "0:12:33");
  EXPECT_EQ(duration(86'399), "23:59:59");
  EXPECT_EQ(duration(3 * 86'400 + 4 * 3600 + 720), "3 d 04:12");
}

}  // namespace
}  // namespace kvhive::testing
