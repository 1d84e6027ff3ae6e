#pragma once
// The whole frame of `kvhive top`.

#include "tools/screen/output_style.hpp"
#include "tools/top/settings.hpp"

namespace kvhive {

/// Below this size nothing of use fits; the frame says so instead.
inline constexpr ScreenSize kLeastSize{40, 10};

struct TopView {
  const Snapshot& snapshot;
  const Rates& rates;
  const TopSettings& settings;
  double now_seconds = 0;  ///< on the snapshot's clock: the data's age is shown
};

/// Header, tables, the map below them, and the keys. The pane's table comes first, the others as
/// far as there is room; the map has what is left.
Frame draw_top(const TopView& view, ScreenSize size, OutputStyle style);

/// A frame for a pipe or a file: as high as all rows of all tables need, and a small map.
Frame draw_plain(const TopView& view, std::size_t width, OutputStyle style);

/// Rows of the pane's table, after filtering.
std::size_t rows_of_pane(const TopView& view);

}  // namespace kvhive
