#pragma once
// A table that fits its place: columns of fixed width, of which the least important go first when
// it is narrow; rows that are sorted and filtered.

#include <optional>
#include <string>
#include <vector>

#include "tools/screen/frame.hpp"

namespace kvhive {

struct GridColumn {
  std::string title;
  std::size_t width;
  bool is_number;
  int rank;  ///< the column of the highest rank is the first to go
};

struct GridCell {
  std::string text;
  double number = 0;  ///< what a number is sorted by
};

struct GridRow {
  std::vector<GridCell> cells;
  bool is_well = true;  ///< false: it stands out
};

struct Grid {
  std::vector<GridColumn> columns;
  std::vector<GridRow> rows;

  /// Numbers from the largest, texts from A; reversed: the other way round. Equal rows stay in
  /// their order.
  void sort(std::size_t column, bool is_reversed);
  /// Keeps the rows of which a cell contains the text, in capitals or not.
  void filter(const std::string& text);
  /// The columns that fit, in their order.
  std::vector<std::size_t> columns_for(std::size_t width) const;
};

/// Draws the heading and as many rows as fit, from `first` on; the last line says how many are not
/// shown. Nothing in less than two lines.
/// \param sorted  the column to mark; none = no mark
void draw_grid(Frame& frame, std::size_t row, std::size_t height, const Grid& grid,
               std::size_t first, std::optional<std::size_t> sorted);

}  // namespace kvhive
