#pragma once
// The tables of `kvhive top`.

#include "tools/top/grid.hpp"
#include "tools/snapshot/rates.hpp"

namespace kvhive {

enum class Pane : std::uint8_t { engines, domains, clients, map };
constexpr std::array<std::string_view, 4> names_of(Pane) {
  return {"engines", "domains", "clients", "map"};
}
inline constexpr std::size_t kTables = 3;  ///< the panes before the map

/// All rows, in the order of the snapshot. The map has none.
Grid grid_of(Pane pane, const Snapshot& snapshot, const Rates& rates);

/// At most five characters: "12.3", "1,234", "12.3k", "4.5M".
std::string short_number(double number);
/// "0:12:33", "3 d 04:12"
std::string duration(std::uint64_t seconds);

}  // namespace kvhive
