#pragma once
// The pool's blocks as the cells of a picture. A cell stands for one block, or for several
// neighbours where the picture has less room than the pool has blocks.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.hpp"
#include "pool/care/pool_report.hpp"
#include "tools/screen/colour.hpp"

namespace kvhive {

/// What a cell's letter and colour say of its blocks.
enum class MapBy : std::uint8_t {
  state,
  owner,    ///< the engine that holds it
  domain,   ///< whose content it has
  age,      ///< how soon it is evicted: by its place in the release order
  sharing,  ///< how many engines hold it
  tier,     ///< where it is, and whether it is held
};
constexpr std::array<std::string_view, 6> names_of(MapBy) {
  return {"state", "owner", "domain", "age", "sharing", "tier"};
}

/// One entry of the legend.
struct MapCategory {
  std::string name;
  char letter = '?';
  char mixed_letter = '?';  ///< of a cell with blocks of other categories, too
  Colour colour;
  bool is_free = false;  ///< nothing is in the block: it is drawn as ground
};

struct MapCell {
  std::uint32_t first = 0;            ///< id of its first block
  std::uint32_t blocks = 0;           ///< fewer than others only in a tier's last cell
  std::vector<std::uint32_t> counts;  ///< by category; their sum is `blocks`

  /// The category of most of its blocks. Of two with as many, the later one: free is the first.
  std::size_t dominant() const;
  bool is_mixed() const { return counts[dominant()] != blocks; }
};

struct TierMap {
  Tier tier = Tier::device;
  std::uint32_t first = 0, blocks = 0;
  std::vector<MapCell> cells;
};

struct PoolMap {
  MapBy by = MapBy::state;
  std::uint32_t blocks_per_cell = 1;
  std::vector<MapCategory> categories;
  std::vector<std::uint64_t> totals;  ///< by category
  std::vector<TierMap> tiers;         ///< those that have blocks

  char letter(const MapCell& cell) const;
  bool has_mixed_cells() const;
};

/// The legend of a map by state, in the order free, filling, held by one, shared, idle, retired.
std::vector<MapCategory> state_categories();

/// What a map calls owners and domains.
struct MapNames {
  std::array<std::optional<std::uint32_t>, kMaxProcesses> engine_of_slot;  ///< those attached
  std::vector<std::string> domains;  ///< by number; the number itself where there is none
};
MapNames map_names(const PoolReport& report, std::vector<std::string> domains);

/// The least power of two so that all tiers' blocks fit into `rows` rows of `columns` cells. A tier
/// begins a row of its own. With fewer rows than tiers: the scale for one row each.
std::uint32_t blocks_per_cell(const PoolGeometry& geometry, std::size_t columns, std::size_t rows);

/// Every block's category. Cells are made of it at any scale, so a view that learns late how much
/// room it has reads the pool once.
struct SortedBlocks {
  MapBy by = MapBy::state;
  std::uint32_t device_blocks = 0, host_blocks = 0;  ///< without the null block
  std::vector<MapCategory> categories;
  std::vector<std::uint16_t> category_of;  ///< by block id - 1

  PoolMap map(std::uint32_t blocks_per_cell) const;
};

/// Sorts blocks into categories, one after the other.
class BlockSorter {
 public:
  BlockSorter(const PoolGeometry& geometry, MapBy by, MapNames names);

  /// In the order of their ids, from block 1 on.
  void add(const BlockReport& block);
  SortedBlocks finish() &&;

 private:
  using Key = std::uint32_t;  ///< what categories are sorted by
  struct Idle {
    std::uint64_t stamp;
    std::uint32_t place;  ///< in keys_
  };

  Key key_of(const BlockReport& block) const;
  void rank_idle_blocks();
  std::vector<Key> keys_of_legend() const;
  MapCategory category_of(Key key) const;

  PoolGeometry geometry_;
  MapBy by_;
  MapNames names_;
  std::vector<Key> keys_;  ///< by block id - 1
  std::array<std::vector<Idle>, kTiers> idle_;
};

/// Reads the whole pool.
SortedBlocks sort_blocks(const PoolMemory& memory, MapBy by, MapNames names);

/// Reads the whole pool once, for several maps of the same cells.
/// \return  one map for each of `by`, in its order
std::vector<PoolMap> map_pool(const PoolMemory& memory, const MapNames& names,
                              std::span<const MapBy> by, std::uint32_t blocks_per_cell);

}  // namespace kvhive
