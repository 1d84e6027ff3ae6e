#include "tools/map/map_drawing.hpp"

#include <algorithm>

#include "tools/map/map_frame.hpp"

namespace kvhive {
namespace {

constexpr int kMargin = 16, kTitleScale = 2, kTextScale = 2, kSmallScale = 1;
constexpr int kLine = kLetterHeight * kTextScale + 6;
constexpr Colour kPaper{255, 255, 255, 15}, kInk{32, 36, 42, 0}, kSoftInk{110, 116, 125, 8};
constexpr int kLeastWidth = 640;

int text_width(const std::string& text, int scale) {
  return static_cast<int>(text.size()) * kLetterWidth * scale;
}

/// Labels are ASCII: names that are not have their other characters replaced.
std::string plain(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x80)
      result += byte < 0x20 || byte == 0x7f ? '?' : letter;
    else if (byte >= 0xc0)
      result += '?';  // once for each character
  }
  return result;
}

class MapPainter {
 public:
  MapPainter(const PoolMap& map, PictureGrid grid) : map_(map), grid_(grid) {
    std::uint32_t last = 0;
    for (const TierMap& tier : map.tiers) last = tier.first + tier.blocks;
    left_ = kMargin + text_width(std::to_string(last), kSmallScale) + 8;
    drawing_.width =
        std::max(kLeastWidth, left_ + static_cast<int>(grid.columns) * grid.side + kMargin);
  }

  Drawing paint(const std::string& title) && {
    label(kMargin, kTitleScale, kInk, title);
    y_ += kLine;
    label(kMargin, kSmallScale, kSoftInk, scale_text(map_));
    y_ += kLine;
    for (const TierMap& tier : map_.tiers) {
      label(
          kMargin, kSmallScale, kInk,
          std::string(to_string(tier.tier)) + " tier: " + std::to_string(tier.blocks) + " blocks");
      y_ += kLetterHeight + 6;
      cells(tier);
      y_ += 12;
    }
    legend();
    drawing_.height = y_ + kMargin;
    drawing_.boxes.insert(drawing_.boxes.begin(),
                          Drawing::Box{0, 0, drawing_.width, drawing_.height, kPaper});
    return std::move(drawing_);
  }

 private:
  void label(int x, int scale, Colour colour, const std::string& text) {
    drawing_.labels.push_back({x, y_, scale, colour, plain(text)});
  }

  void cells(const TierMap& tier) {
    for (std::size_t i = 0; i < tier.cells.size(); ++i) {
      const int column = static_cast<int>(i % grid_.columns);
      if (column == 0) begin_row(tier.cells[i]);
      cell(tier.cells[i], left_ + column * grid_.side);
      if (column + 1 == static_cast<int>(grid_.columns) || i + 1 == tier.cells.size())
        y_ += grid_.side;
    }
  }

  /// The number of the row's first block, where rows are high enough to read it.
  void begin_row(const MapCell& first) {
    if (grid_.side < kLetterHeight) return;
    const std::string number = std::to_string(first.first);
    drawing_.labels.push_back({left_ - 6 - text_width(number, kSmallScale),
                               y_ + (grid_.side - kLetterHeight) / 2, kSmallScale, kSoftInk,
                               number});
  }

  void cell(const MapCell& cell, int x) {
    const int side = grid_.side - (grid_.side > 4 ? 1 : 0);
    std::uint64_t before = 0;
    for (std::size_t c = 0; c < cell.counts.size(); ++c) {
      const int from = static_cast<int>(before * static_cast<std::uint64_t>(side) / cell.blocks);
      before += cell.counts[c];
      const int to = static_cast<int>(before * static_cast<std::uint64_t>(side) / cell.blocks);
      if (to > from)
        drawing_.boxes.push_back({x + from, y_, to - from, side, map_.categories[c].colour});
    }
    const MapCategory& most = map_.categories[cell.dominant()];
    if (!grid_.has_letters || most.is_free) return;
    letter(x, y_, side, most, map_.letter(cell));
  }

  /// In the middle of a box of its category's colour.
  void letter(int x, int y, int side, const MapCategory& category, char which) {
    const int scale = side >= 16 ? 2 : 1;
    drawing_.labels.push_back({x + (side - (kLetterWidth - 1) * scale + 1) / 2,
                               y + (side - kCapitalHeight * scale + 1) / 2, scale,
                               ink_on(category.colour), std::string(1, which)});
  }

  void legend() {
    int x = kMargin;
    for (std::size_t i = 0; i < map_.categories.size(); ++i) {
      const MapCategory& category = map_.categories[i];
      const std::string text = category.name + ": " + std::to_string(map_.totals[i]);
      constexpr int kSwatch = 19, kGap = 8, kBetween = 28;
      const int width = kSwatch + kGap + text_width(text, kTextScale) + kBetween;
      if (x != kMargin && x + width > drawing_.width) x = kMargin, y_ += kLine;
      drawing_.boxes.push_back({x, y_ - 2, kSwatch, kSwatch, category.colour});
      letter(x, y_ - 2, kSwatch, category, category.letter);
      label(x + kSwatch + kGap, kTextScale, kInk, text);
      x += width;
    }
    y_ += kLine;
  }

  const PoolMap& map_;
  PictureGrid grid_;
  Drawing drawing_;
  int left_ = 0, y_ = kMargin;
};

}  // namespace

PictureGrid grid_for(std::size_t cells) {
  if (cells <= 1024) return {64, 20, true};
  if (cells <= kPictureCells) return {64, 14, true};
  if (cells <= 65536) return {256, 6, false};
  return {1024, 2, false};
}

Drawing draw_map(const PoolMap& map, const std::string& title) {
  std::size_t cells = 0;
  for (const TierMap& tier : map.tiers) cells += tier.cells.size();
  return MapPainter(map, grid_for(cells)).paint(title);
}

}  // namespace kvhive
