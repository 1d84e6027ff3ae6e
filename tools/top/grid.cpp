#include "tools/top/grid.hpp"

#include <algorithm>
#include <cctype>

namespace kvhive {
namespace {

std::string in_lower_case(std::string text) {
  for (char& letter : text)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

constexpr std::size_t kGap = 1;

}  // namespace

void Grid::sort(std::size_t column, bool is_reversed) {
  if (column >= columns.size()) return;
  const bool is_number = columns[column].is_number;
  std::stable_sort(rows.begin(), rows.end(), [&](const GridRow& a, const GridRow& b) {
    const GridCell& left = (is_reversed ? b : a).cells[column];
    const GridCell& right = (is_reversed ? a : b).cells[column];
    return is_number ? left.number > right.number : left.text < right.text;
  });
}

void Grid::filter(const std::string& text) {
  if (text.empty()) return;
  const std::string wanted = in_lower_case(text);
  std::erase_if(rows, [&](const GridRow& row) {
    return std::none_of(row.cells.begin(), row.cells.end(), [&](const GridCell& cell) {
      return in_lower_case(cell.text).find(wanted) != std::string::npos;
    });
  });
}

std::vector<std::size_t> Grid::columns_for(std::size_t width) const {
  std::vector<std::size_t> kept(columns.size());
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  const auto needed = [&] {
    std::size_t sum = 0;
    for (const std::size_t i : kept) sum += columns[i].width + kGap;
    return sum == 0 ? 0 : sum - kGap;
  };
  while (kept.size() > 1 && needed() > width)
    kept.erase(std::max_element(kept.begin(), kept.end(), [&](std::size_t a, std::size_t b) {
      return columns[a].rank < columns[b].rank;
    }));
  return kept;
}

void draw_grid(Frame& frame, std::size_t row, std::size_t height, const Grid& grid,
               std::size_t first, std::optional<std::size_t> sorted) {
  if (height < 2) return;
  const auto shown = grid.columns_for(frame.size().width);
  const auto put = [&](std::size_t line, std::size_t& column, std::size_t i,
                       const std::string& text, Style style) {
    const std::size_t width = grid.columns[i].width;
    if (grid.columns[i].is_number)
      frame.put_right(line, column + width, cut(text, width), style);
    else
      frame.put(line, column, cut(text, width), style);
    column += width + kGap;
  };
  std::size_t column = 0;
  frame.paint_row(row, kReverse);
  for (const std::size_t i : shown) {
    // The mark keeps its place beside the title, so that no column moves with it.
    Style style = kReverse;
    style.is_bold = sorted == i;
    put(row, column, i, (sorted == i ? "*" : "") + grid.columns[i].title, style);
  }
  const std::size_t room = height - 1;
  const bool is_cut = grid.rows.size() > room;
  const std::size_t lines = is_cut ? room - 1 : grid.rows.size();
  first = std::min(first, grid.rows.size() - lines);
  for (std::size_t line = 0; line < lines; ++line) {
    const GridRow& entry = grid.rows[first + line];
    const Style style = entry.is_well ? kPlain : kBold;
    frame.paint_row(row + 1 + line, style);
    column = 0;
    for (const std::size_t i : shown) put(row + 1 + line, column, i, entry.cells[i].text, style);
  }
  if (is_cut)
    frame.put(row + room, 0,
              cut("... " + std::to_string(grid.rows.size() - lines) + " of " +
                      std::to_string(grid.rows.size()) + " rows are not shown (up, down)",
                  frame.size().width),
              kFaint);
}

}  // namespace kvhive
