#pragma once
// Blocks of states that a test chooses, and their map.

#include <string_view>

#include "tools/map/pool_map.hpp"

namespace kvhive::testing {

inline PoolGeometry geometry_of(std::uint32_t device_blocks, std::uint32_t host_blocks = 0) {
  PoolGeometry geometry;
  geometry.device_blocks = device_blocks + 1;  // and the null block
  geometry.host_blocks = host_blocks;
  geometry.models[0].tokens_per_block = 16;
  return geometry;
}

inline BlockReport block_of(char state, std::uint32_t id, std::uint32_t device_blocks) {
  BlockReport block;
  block.id = BlockId{id};
  block.tier = id <= device_blocks ? Tier::device : Tier::host;
  switch (state) {
    case '.': block.word = BlockWord::make(BlockState::free, 1, 0); break;
    case 'F': block.word = BlockWord::make(BlockState::filling, 1, 1); break;
    case 'H': block.word = BlockWord::make(BlockState::ready, 1, 2); break;
    case 'S': block.word = BlockWord::make(BlockState::ready, 1, 3); break;
    case 'I': block.word = BlockWord::make(BlockState::ready, 1, 0); break;
    case 'X': block.word = BlockWord::make(BlockState::retired, 1, 0); break;
    default: block.word = BlockWord::make(BlockState(6), 1, 0);
  }
  return block;
}

/// Slot 0 is engine 4's, slot 1 engine 7's.
inline MapNames sample_names() {
  MapNames names;
  names.engine_of_slot[0] = 4;
  names.engine_of_slot[1] = 7;
  names.domains = {"default", "team"};
  return names;
}

/// One letter for each block, as the map by state shows them; those of the host tier behind them.
inline PoolMap map_of(std::string_view device, std::string_view host = "",
                      std::uint32_t blocks_per_cell = 1, MapBy by = MapBy::state) {
  const auto blocks = static_cast<std::uint32_t>(device.size());
  BlockSorter sorter(geometry_of(blocks, static_cast<std::uint32_t>(host.size())), by,
                     sample_names());
  std::uint32_t id = 0;
  for (const char state : std::string(device) + std::string(host))
    sorter.add(block_of(state, ++id, blocks));
  return std::move(sorter).finish().map(blocks_per_cell);
}

/// The letters of all cells of a tier.
inline std::string letters_of(const PoolMap& map, std::size_t tier = 0) {
  std::string letters;
  for (const MapCell& cell : map.tiers.at(tier).cells) letters += map.letter(cell);
  return letters;
}

}  // namespace kvhive::testing
