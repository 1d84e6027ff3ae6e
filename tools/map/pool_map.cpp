#include "tools/map/pool_map.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>

namespace kvhive {
namespace {

// Keys of categories, in the order of the legend. Free is the first, so that a cell of which half
// is free shows what the other half is.
constexpr std::uint32_t kFree = 0, kFilling = 1, kHeld = 2, kShared = 3, kIdle = 4, kRetired = 5;
constexpr std::uint32_t kOwners = 100, kUnknownOwner = kOwners + 99;
constexpr std::uint32_t kSeveral = 200, kCached = 201;
constexpr std::uint32_t kAges = 300, kInUse = 320;
constexpr std::uint32_t kHolders = 400, kManyHolders = 4;
constexpr std::uint32_t kTierKeys = 500;  // for each tier: held, cached
constexpr std::uint32_t kDomains = 1000;
constexpr std::uint32_t kKeys = kDomains + (1u << 16);  // more than any key
constexpr std::uint32_t kDeciles = 10;

// Colours that people who see less red or green tell apart (after Okabe and Ito).
constexpr Colour kGrey{226, 229, 233, 7}, kOrange{230, 159, 0, 3}, kBlue{0, 114, 178, 4},
    kGreen{0, 158, 115, 2}, kPale{150, 184, 214, 6}, kRed{196, 40, 48, 1}, kViolet{123, 63, 160, 5};

/// For engines and domains, one after the other; their letters tell those of one colour apart.
constexpr std::array<Colour, 8> kWheel = {{{0, 114, 178, 4},
                                           {230, 159, 0, 3},
                                           {0, 158, 115, 2},
                                           {204, 121, 167, 13},
                                           {86, 180, 233, 14},
                                           {213, 94, 0, 9},
                                           {240, 228, 66, 11},
                                           {118, 118, 118, 8}}};

/// By how many engines hold a block; the last: as many or more.
constexpr std::array<Colour, kManyHolders> kSharing = {
    {{86, 180, 233, 14}, {0, 114, 178, 4}, {230, 159, 0, 3}, {213, 94, 0, 9}}};

/// The device tier, held and cached, then the host tier.
constexpr std::array<Colour, 2 * kTiers> kTierColours = {
    {{0, 114, 178, 4}, {150, 184, 214, 6}, {213, 94, 0, 9}, {240, 190, 150, 11}}};

/// From what is evicted next to what is evicted last (viridis, bright to dark).
constexpr std::array<Colour, kDeciles> kAgeing = {{{253, 231, 37, 11},
                                                   {180, 222, 44, 11},
                                                   {109, 205, 89, 10},
                                                   {53, 183, 121, 10},
                                                   {31, 158, 137, 2},
                                                   {38, 130, 142, 6},
                                                   {49, 104, 142, 6},
                                                   {62, 73, 137, 4},
                                                   {72, 40, 120, 5},
                                                   {68, 1, 84, 5}}};

/// 0 to 9, then A to Z.
char digit(std::uint32_t number) {
  return static_cast<char>(number < 10 ? '0' + number : number < 36 ? 'A' + number - 10 : '*');
}
/// A to Z, then a to z.
char domain_letter(std::uint32_t number) {
  return static_cast<char>(number < 26 ? 'A' + number : number < 52 ? 'a' + number - 26 : '*');
}

MapCategory category(std::string name, char letter, Colour colour) {
  return {std::move(name), letter, letter, colour, false};
}

std::uint32_t rows_of(std::uint32_t blocks, std::uint64_t per_cell, std::size_t columns) {
  const std::uint64_t cells = (blocks + per_cell - 1) / per_cell;
  return static_cast<std::uint32_t>((cells + columns - 1) / columns);
}

}  // namespace

std::size_t MapCell::dominant() const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < counts.size(); ++i)
    if (counts[i] != 0 && counts[i] >= counts[best]) best = i;
  return best;
}

char PoolMap::letter(const MapCell& cell) const {
  const MapCategory& most = categories[cell.dominant()];
  return cell.is_mixed() ? most.mixed_letter : most.letter;
}

bool PoolMap::has_mixed_cells() const {
  for (const TierMap& tier : tiers)
    if (std::any_of(tier.cells.begin(), tier.cells.end(),
                    [](const MapCell& cell) { return cell.is_mixed(); }))
      return true;
  return false;
}

std::vector<MapCategory> state_categories() {
  return {{"free", '.', ',', kGrey, true},           {"filling", 'F', 'f', kOrange, false},
          {"held by one", 'H', 'h', kBlue, false},   {"shared", 'S', 's', kGreen, false},
          {"idle (cached)", 'I', 'i', kPale, false}, {"retired", 'X', 'x', kRed, false}};
}

MapNames map_names(const PoolReport& report, std::vector<std::string> domains) {
  MapNames names{{}, std::move(domains)};
  for (const ProcessReport& process : report.processes)
    names.engine_of_slot[process.slot] = process.index;
  return names;
}

std::uint32_t blocks_per_cell(const PoolGeometry& geometry, std::size_t columns, std::size_t rows) {
  columns = std::max<std::size_t>(columns, 1);
  const std::uint32_t device = geometry.device_blocks - 1, host = geometry.host_blocks;
  const std::size_t least_rows = host != 0 ? 2 : 1;
  std::uint32_t per_cell = 1;
  while (rows_of(device, per_cell, columns) + rows_of(host, per_cell, columns) >
         std::max(rows, least_rows))
    per_cell *= 2;
  return per_cell;
}

BlockSorter::BlockSorter(const PoolGeometry& geometry, MapBy by, MapNames names)
    : geometry_(geometry), by_(by), names_(std::move(names)) {
  keys_.reserve(geometry.total_blocks() - 1);
}

void BlockSorter::add(const BlockReport& block) {
  if (by_ == MapBy::age && block.word.is_idle())
    idle_[std::size_t(block.tier)].push_back(
        {block.stamp, static_cast<std::uint32_t>(keys_.size())});
  keys_.push_back(key_of(block));
}

BlockSorter::Key BlockSorter::key_of(const BlockReport& block) const {
  const std::uint32_t holders = block.word.holders();
  switch (block.word.state()) {
    case BlockState::free: return kFree;
    case BlockState::filling:
      if (by_ == MapBy::state) return kFilling;
      break;
    case BlockState::ready:
      if (by_ == MapBy::state)
        return holders == 0 ? kIdle : std::has_single_bit(holders) ? kHeld : kShared;
      break;
    default: return kRetired;  // a corrupt state, too, as `pool stat` counts it
  }
  if (by_ == MapBy::domain) return kDomains + block.domain.value;
  if (by_ == MapBy::age) return kInUse;  // idle ones get theirs when all stamps are known
  if (by_ == MapBy::tier)
    return kTierKeys + 2 * static_cast<Key>(block.tier) + (holders == 0 ? 1 : 0);
  if (holders == 0) return kCached;
  if (by_ == MapBy::sharing)
    return kHolders + std::min<Key>(static_cast<Key>(std::popcount(holders)), kManyHolders);
  if (!std::has_single_bit(holders)) return kSeveral;
  const auto slot = static_cast<std::size_t>(std::countr_zero(holders));
  const auto engine = slot < names_.engine_of_slot.size() ? names_.engine_of_slot[slot]
                                                          : std::optional<std::uint32_t>();
  return engine ? kOwners + std::min(*engine, kUnknownOwner - kOwners - 1) : kUnknownOwner;
}

/// Tenths by rank, not by stamp: stamps leave gaps where blocks were pinned again.
void BlockSorter::rank_idle_blocks() {
  for (std::vector<Idle>& tier : idle_) {
    std::sort(tier.begin(), tier.end(),
              [](const Idle& a, const Idle& b) { return a.stamp < b.stamp; });
    for (std::size_t i = 0; i < tier.size(); ++i)
      keys_[tier[i].place] = kAges + static_cast<Key>(i * kDeciles / tier.size());
  }
}

/// Categories that are named also when no block is in them, and those of the blocks.
std::vector<BlockSorter::Key> BlockSorter::keys_of_legend() const {
  std::vector<bool> has(kKeys);  // a set of a million insertions would take longest of all
  const auto insert = [&has](std::initializer_list<Key> keys) {
    for (const Key key : keys) has[key] = true;
  };
  insert({kFree});
  if (by_ == MapBy::state) insert({kFilling, kHeld, kShared, kIdle, kRetired});
  if (by_ == MapBy::owner) {
    insert({kSeveral, kCached});
    for (const auto& engine : names_.engine_of_slot)
      if (engine) insert({kOwners + std::min(*engine, kUnknownOwner - kOwners - 1)});
  }
  if (by_ == MapBy::sharing) {
    insert({kCached});
    for (std::uint32_t i = 1; i <= kManyHolders; ++i) insert({kHolders + i});
  }
  if (by_ == MapBy::tier)
    for (std::uint32_t i = 0; i < (geometry_.host_blocks != 0 ? 2 * kTiers : 2); ++i)
      insert({kTierKeys + static_cast<Key>(i)});
  if (by_ == MapBy::age) {
    insert({kInUse});
    for (std::uint32_t i = 0; i < kDeciles; ++i) insert({kAges + i});
  }
  for (const Key key : keys_) has[key] = true;
  std::vector<Key> keys;
  for (Key key = 0; key < kKeys; ++key)
    if (has[key]) keys.push_back(key);
  return keys;
}

MapCategory BlockSorter::category_of(Key key) const {
  if (key <= kRetired) {
    MapCategory state = state_categories()[key];
    if (by_ != MapBy::state) state.mixed_letter = state.letter;
    return state;
  }
  switch (key) {
    case kSeveral: return category("held by several", '+', kViolet);
    case kCached: return category("idle (cached)", '-', kPale);
    case kUnknownOwner: return category("an engine not known", '?', kRed);
    case kInUse: return category("in use", '#', kBlue);
    default: break;
  }
  if (key >= kDomains) {
    const std::uint32_t number = key - kDomains;
    return category("domain " + (number < names_.domains.size() ? names_.domains[number]
                                                                : std::to_string(number)),
                    domain_letter(number), kWheel[number % kWheel.size()]);
  }
  if (key >= kTierKeys) {
    const std::uint32_t place = key - kTierKeys;
    const std::string tier(to_string(Tier(place / 2)));
    return category(tier + (place % 2 == 0 ? ", in use" : ", idle (cached)"), "DdUu"[place],
                    kTierColours[place]);
  }
  if (key >= kHolders) {
    const std::uint32_t engines = key - kHolders;
    return category("held by " + std::to_string(engines) +
                        (engines == 1              ? " engine"
                         : engines == kManyHolders ? " or more engines"
                                                   : " engines"),
                    digit(engines), kSharing[engines - 1]);
  }
  if (key >= kAges) {
    const std::uint32_t tenth = key - kAges;
    return category(tenth == 0              ? "idle, evicted next"
                    : tenth == kDeciles - 1 ? "idle, evicted last"
                                            : "tenth " + std::to_string(tenth),
                    digit(tenth), kAgeing[tenth]);
  }
  const std::uint32_t engine = key - kOwners;
  return category("engine " + std::to_string(engine), digit(engine),
                  kWheel[engine % kWheel.size()]);
}

SortedBlocks BlockSorter::finish() && {
  rank_idle_blocks();
  SortedBlocks sorted{by_, geometry_.device_blocks - 1, geometry_.host_blocks, {}, {}};
  const std::vector<Key> legend = keys_of_legend();
  for (const Key key : legend) sorted.categories.push_back(category_of(key));
  std::vector<std::uint16_t> place_of(kKeys);
  for (std::size_t i = 0; i < legend.size(); ++i)
    place_of[legend[i]] = static_cast<std::uint16_t>(i);
  sorted.category_of.reserve(keys_.size());
  for (const Key key : keys_) sorted.category_of.push_back(place_of[key]);
  return sorted;
}

PoolMap SortedBlocks::map(std::uint32_t per_cell) const {
  PoolMap map{by, per_cell, categories, std::vector<std::uint64_t>(categories.size()), {}};
  for (const TierMap& tier : {TierMap{Tier::device, 1, device_blocks, {}},
                              TierMap{Tier::host, device_blocks + 1, host_blocks, {}}})
    if (tier.blocks != 0) map.tiers.push_back(tier);
  for (TierMap& tier : map.tiers) {
    for (std::uint32_t done = 0; done < tier.blocks;) {
      MapCell cell{tier.first + done, std::min(per_cell, tier.blocks - done),
                   std::vector<std::uint32_t>(categories.size())};
      for (std::uint32_t i = 0; i < cell.blocks; ++i)
        ++cell.counts[category_of[cell.first - 1 + i]];
      for (std::size_t c = 0; c < categories.size(); ++c) map.totals[c] += cell.counts[c];
      done += cell.blocks;
      tier.cells.push_back(std::move(cell));
    }
  }
  return map;
}

SortedBlocks sort_blocks(const PoolMemory& memory, MapBy by, MapNames names) {
  BlockSorter sorter(memory.geometry(), by, std::move(names));
  for_each_block(memory, [&](const BlockReport& block) { sorter.add(block); });
  return std::move(sorter).finish();
}

std::vector<PoolMap> map_pool(const PoolMemory& memory, const MapNames& names,
                              std::span<const MapBy> by, std::uint32_t blocks_per_cell) {
  std::vector<BlockSorter> sorters;
  for (const MapBy one : by) sorters.emplace_back(memory.geometry(), one, names);
  for_each_block(memory, [&](const BlockReport& block) {
    for (BlockSorter& sorter : sorters) sorter.add(block);
  });
  std::vector<PoolMap> maps;
  maps.reserve(sorters.size());
  for (BlockSorter& sorter : sorters)
    maps.push_back(std::move(sorter).finish().map(blocks_per_cell));
  return maps;
}

}  // namespace kvhive
