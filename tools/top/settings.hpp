#pragma once
// What the user of `kvhive top` has chosen, and how keys change it.

#include "tools/screen/keys.hpp"
#include "tools/top/panes.hpp"

namespace kvhive {

struct TopSettings {
  Pane pane = Pane::engines;
  std::array<std::size_t, kTables> sort{};  ///< a column, by pane
  std::array<bool, kTables> is_reversed{};
  std::string filter;      ///< rows that contain it are shown, in every table
  bool is_typing = false;  ///< what is typed goes into the filter
  bool is_paused = false;
  bool has_help = false;
  std::size_t first_row = 0;  ///< of the pane's table
  double interval = 1;        ///< seconds between two snapshots
  MapBy by = MapBy::state;
};

/// Between frames: what the terminal and the machine take without notice.
inline constexpr double kLeastInterval = 0.1, kMostInterval = 3600;

enum class TopAction : std::uint8_t {
  redraw,      ///< nothing, or something that the next frame shows
  read_again,  ///< the next snapshot is due now
  quit,
};

/// \param rows  of the pane's table, to scroll no further than there are any
TopAction apply(Key key, TopSettings& settings, std::size_t rows);

/// "p pause", ...: what each key does, one entry each.
std::span<const std::pair<std::string_view, std::string_view>> key_help();

}  // namespace kvhive
