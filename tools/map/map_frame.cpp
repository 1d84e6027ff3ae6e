#include "tools/map/map_frame.hpp"

#include <algorithm>

namespace kvhive {
namespace {

/// Free cells have no ground of their own; as halves they need one that dark and light terminals
/// show.
constexpr Colour kFreeHalf{88, 91, 96, 8};
constexpr std::size_t kGroup = 16;

std::size_t label_width(const PoolGeometry& geometry) {
  return std::to_string(geometry.total_blocks()).size() + 1;
}

/// Columns behind the cells: " HI".
std::size_t margin_width(MapGlyphs glyphs) { return glyphs == MapGlyphs::halves ? 3 : 0; }

std::size_t cell_rows_in(MapGlyphs glyphs) { return glyphs == MapGlyphs::halves ? 2 : 1; }

Style style_of(const MapCategory& category, Colours colours) {
  if (category.is_free) return kFaint;
  if (colours == Colours::none) return kPlain;
  return {ink_on(category.colour), category.colour, false, false, false};
}

Colour half_colour(const MapCategory& category) {
  return category.is_free ? kFreeHalf : category.colour;
}

class Painter {
 public:
  Painter(const PoolMap& map, std::size_t columns, std::size_t left, MapLook look, Frame& frame)
      : map_(map), columns_(columns), left_(left), look_(look), frame_(frame) {}

  /// Returns the row behind the tier.
  std::size_t paint(const TierMap& tier, std::size_t row) const {
    const std::size_t step = columns_ * cell_rows_in(look_.glyphs);
    for (std::size_t i = 0; i < tier.cells.size(); i += step, ++row) {
      frame_.put_right(row, left_ - 1, std::to_string(tier.cells[i].first), kFaint);
      if (look_.glyphs == MapGlyphs::letters)
        letters(tier, i, row);
      else
        halves(tier, i, row);
    }
    return row;
  }

 private:
  const MapCategory& most_of(const MapCell& cell) const { return map_.categories[cell.dominant()]; }

  void letters(const TierMap& tier, std::size_t from, std::size_t row) const {
    for (std::size_t i = from; i < std::min(from + columns_, tier.cells.size()); ++i) {
      const MapCell& cell = tier.cells[i];
      frame_.put_letter(row, left_ + i - from, static_cast<char32_t>(map_.letter(cell)),
                        style_of(most_of(cell), look_.style.colours));
    }
  }

  void halves(const TierMap& tier, std::size_t from, std::size_t row) const {
    for (std::size_t column = 0; column < columns_; ++column) {
      const std::size_t upper = from + column, lower = upper + columns_;
      if (upper >= tier.cells.size()) break;
      Style style{half_colour(most_of(tier.cells[upper])), {}, false, false, false};
      if (lower < tier.cells.size()) style.ground = half_colour(most_of(tier.cells[lower]));
      frame_.put_letter(row, left_ + column, U'\u2580', style);
    }
    std::string margin = {' ', row_letter(tier, from)};
    if (from + columns_ < tier.cells.size()) margin += row_letter(tier, from + columns_);
    frame_.put(row, left_ + columns_, margin);
  }

  /// The letter of what most blocks of a row of cells are.
  char row_letter(const TierMap& tier, std::size_t from) const {
    MapCell row{0, 0, std::vector<std::uint32_t>(map_.categories.size())};
    for (std::size_t i = from; i < std::min(from + columns_, tier.cells.size()); ++i) {
      row.blocks += tier.cells[i].blocks;
      for (std::size_t c = 0; c < row.counts.size(); ++c) row.counts[c] += tier.cells[i].counts[c];
    }
    return map_.letter(row);
  }

  const PoolMap& map_;
  std::size_t columns_, left_;
  MapLook look_;
  Frame& frame_;
};

std::size_t heading_rows(const PoolGeometry& geometry) { return geometry.host_blocks != 0 ? 2 : 0; }

}  // namespace

std::size_t map_columns(const PoolGeometry& geometry, std::size_t width, MapGlyphs glyphs) {
  const std::size_t beside = label_width(geometry) + margin_width(glyphs);
  const std::size_t room = width > beside ? width - beside : 1;
  return room >= kGroup ? room / kGroup * kGroup : room;
}

std::uint32_t scale_for(const PoolGeometry& geometry, ScreenSize size, MapGlyphs glyphs) {
  const std::size_t headings = heading_rows(geometry);
  const std::size_t rows = size.height > headings ? size.height - headings : 1;
  return blocks_per_cell(geometry, map_columns(geometry, size.width, glyphs) * cell_rows_in(glyphs),
                         rows);
}

Frame draw_cells(const PoolMap& map, const PoolGeometry& geometry, std::size_t width,
                 MapLook look) {
  const std::size_t columns = map_columns(geometry, width, look.glyphs);
  const std::size_t per_row = columns * cell_rows_in(look.glyphs);
  std::size_t height = heading_rows(geometry);
  for (const TierMap& tier : map.tiers) height += (tier.cells.size() + per_row - 1) / per_row;
  Frame frame({width, height});
  const Painter painter(map, columns, label_width(geometry), look, frame);
  std::size_t row = 0;
  for (const TierMap& tier : map.tiers) {
    if (heading_rows(geometry) != 0)
      frame.put(row++, 0, std::string(to_string(tier.tier)) + " tier", kBold);
    row = painter.paint(tier, row);
  }
  return frame;
}

Frame draw_legend(const PoolMap& map, std::size_t width, MapLook look) {
  constexpr std::size_t kGap = 3;
  struct Place {
    std::size_t row, column;
    std::string text;
  };
  std::vector<Place> places;
  std::size_t row = 0, column = 0;
  for (std::size_t i = 0; i < map.categories.size(); ++i) {
    const std::string text = map.categories[i].name + ": " + std::to_string(map.totals[i]);
    const std::size_t needs = 2 + width_of(text);
    if (column != 0 && column + needs > width) ++row, column = 0;
    places.push_back({row, column, text});
    column += needs + kGap;
  }
  Frame frame({width, row + 1});
  for (std::size_t i = 0; i < places.size(); ++i) {
    const MapCategory& category = map.categories[i];
    const Place& place = places[i];
    Style style = style_of(category, look.style.colours);
    if (look.glyphs == MapGlyphs::halves && category.is_free)
      style = {ink_on(kFreeHalf), kFreeHalf, false, false, false};
    frame.put_letter(place.row, place.column, static_cast<char32_t>(category.letter), style);
    frame.put(place.row, place.column + 2,
              cut(place.text, width - std::min(width, place.column + 2)));
  }
  return frame;
}

std::string scale_text(const PoolMap& map) {
  const bool is_one = map.blocks_per_cell == 1;
  std::string text =
      "one cell = " + std::to_string(map.blocks_per_cell) + (is_one ? " block" : " blocks");
  if (map.by == MapBy::state && map.has_mixed_cells())
    text += "; small letter or comma: most, not all";
  else if (!is_one)
    text += ", shown as most of them are";
  return text;
}

}  // namespace kvhive
