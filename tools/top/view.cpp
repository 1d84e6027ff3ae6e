#include "tools/top/view.hpp"

#include <algorithm>
#include <cstdio>

#include "tools/map/map_frame.hpp"

namespace kvhive {
namespace {

/// A strip of fewer rows says little; tables other than the pane's give way to it.
constexpr std::size_t kStripRows = 5;

std::string percent_of(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%5.1f%%", 100 * share);
  return text;
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 99.95 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

Grid chosen_grid(Pane pane, const TopView& view) {
  Grid grid = grid_of(pane, view.snapshot, view.rates);
  grid.filter(view.settings.filter);
  grid.sort(view.settings.sort[std::size_t(pane)], view.settings.is_reversed[std::size_t(pane)]);
  return grid;
}

class TopPainter {
 public:
  TopPainter(const TopView& view, ScreenSize size, OutputStyle style)
      : view_(view), style_(style), frame_(size) {}

  Frame paint(bool has_keys) && {
    title();
    for (const Tier tier : {Tier::device, Tier::host}) pool_use(tier);
    traffic();
    if (has_keys) tabs();
    if (!has_keys && !trouble().empty()) frame_.put(row_++, 0, trouble(), kBold);
    bottom_ = height() - (has_keys ? 1 : 0);
    content();
    if (has_keys) footer();
    return std::move(frame_);
  }

  Frame paint_help() && {
    frame_.put(0, 0, "kvhive top: keys", kBold);
    row_ = 2;
    for (const auto& [keys, does] : key_help()) {
      frame_.put(row_, 2, keys, kBold);
      frame_.put(row_++, 13, cut(does, width() - std::min<std::size_t>(width(), 13)));
    }
    ++row_;
    for (const char* line :
         {"prompt, generated: tokens a second. hits, hit%: prompt tokens that were found",
          "in the pool, since the start. held: blocks that an engine's requests use.",
          "idle: cached, and evicted when room is needed. A ! before a state: the engine",
          "does not serve. The pool is read directly; names and clients are what kvhived",
          "said last. docs/OPERATIONS.md has the rest."})
      frame_.put(row_++, 2, cut(line, width() - 2));
    frame_.put(height() - 1, 0, cut("any key: back   q: quit", width()), kReverse);
    return std::move(frame_);
  }

 private:
  std::size_t width() const { return frame_.size().width; }
  std::size_t height() const { return frame_.size().height; }
  const Snapshot& snapshot() const { return view_.snapshot; }
  const TopSettings& settings() const { return view_.settings; }

  void title() {
    const DaemonView& daemon = snapshot().daemon;
    std::string left = "kvhive top  " + daemon.model;
    std::string right =
        "data " + seconds_text(std::max(0.0, view_.now_seconds - snapshot().seconds)) + " old";
    if (settings().is_paused) right = "PAUSED  " + right;
    if (daemon.keeper != 0 && daemon.state != DaemonState::ended)
      left += "  kvhived " + std::to_string(daemon.keeper) + " up " + duration(daemon.age_seconds);
    if (daemon.state == DaemonState::ended) left += "  kvhived has ended";
    if (daemon.state == DaemonState::silent) left += "  NOT ANSWERING";
    frame_.put_right(0, width(), right);
    frame_.put(0, 0, cut(left, width() - std::min(width(), right.size() + 1)), kBold);
    row_ = 1;
  }

  /// "device  1,023 [HHHSSIIII......]   12.3 % in use   30.0 % cached".
  void pool_use(Tier tier) {
    const TierReport& t = snapshot().pool.tiers[std::size_t(tier)];
    if (t.blocks == 0) return;
    const std::uint64_t in_use = t.held + t.filling;
    const std::string name = tier == Tier::device ? "device" : "host  ";
    const std::string left =
        name + " " +
        std::string(6 - std::min<std::size_t>(6, short_number(double(t.blocks)).size()), ' ') +
        short_number(static_cast<double>(t.blocks)) + " [";
    const std::string right = "] " + percent_of(share(in_use, t.blocks)) + " in use " +
                              percent_of(share(t.cached(), t.blocks)) + " cached";
    std::size_t column = frame_.put(row_, 0, left);
    const std::size_t beside = left.size() + right.size();
    const std::size_t room = width() > beside ? width() - beside : 0;
    bar(column, room, t);
    frame_.put(row_++, column + room, right);
  }

  /// The states' letters and colours are the map's.
  void bar(std::size_t column, std::size_t room, const TierReport& t) {
    const std::vector<MapCategory> states = state_categories();
    const std::array<std::uint64_t, 6> counts = {t.free,   t.filling, t.held - t.shared,
                                                 t.shared, t.idle,    t.retired};
    // What there is at all shows, and what is not does not: the most pays for both.
    std::array<std::size_t, 6> cells{};
    std::size_t sum = 0;
    for (std::size_t state = 0; state < cells.size(); ++state) {
      if (counts[state] == 0) continue;
      const double part = share(counts[state], t.blocks) * static_cast<double>(room);
      sum += cells[state] = std::max<std::size_t>(1, static_cast<std::size_t>(part));
    }
    const auto most = static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
    cells[most] = cells[most] + room > sum ? cells[most] + room - sum : 0;
    std::size_t end = column;
    for (const std::size_t state : {1, 2, 3, 5, 4, 0})
      for (std::size_t i = 0; i < cells[state] && end < column + room; ++i)
        letter(end++, states[state]);
  }

  void letter(std::size_t column, const MapCategory& category) {
    Style style = category.is_free ? kFaint : kPlain;
    if (!category.is_free && style_.colours != Colours::none)
      style = {ink_on(category.colour), category.colour, false, false, false};
    frame_.put_letter(row_, column, static_cast<char32_t>(category.letter), style);
  }

  void traffic() {
    const CounterValues& totals = snapshot().pool.totals;
    const auto& rate = view_.rates.hive;
    const auto padded = [](std::string text, std::size_t size) {
      return std::string(size - std::min(size, text.size()), ' ') + text;
    };
    const auto a_second = [&](std::optional<double> number) {
      return padded(number ? short_number(*number) : "-", 5) + "/s";
    };
    const auto gauge = [&](std::uint64_t number) {
      return padded(short_number(static_cast<double>(number)), 4);
    };
    std::string line =
        "prompt " + a_second(rate ? std::optional(rate->prompt_tokens) : std::nullopt) +
        "  generated " + a_second(rate ? std::optional(rate->generated_tokens) : std::nullopt) +
        "  run " + gauge(totals["running"]) + "  wait " + gauge(totals["waiting"]);
    if (totals["prompt_tokens"] != 0)
      line += "  hits " + percent_of(share(totals["cached_tokens"], totals["prompt_tokens"]));
    if (rate && rate->hit_share) line += " now " + percent_of(*rate->hit_share);
    frame_.put(row_++, 0, cut(line, width()));
  }

  void tabs() {
    std::size_t column = 0;
    for (std::size_t i = 0; i < names_of(Pane{}).size(); ++i) {
      const bool is_chosen = std::size_t(settings().pane) == i;
      const std::string name = std::to_string(i + 1) + " " + std::string(names_of(Pane{})[i]);
      // Brackets, too: a terminal without reverse shows the choice.
      column = frame_.put(row_, column, is_chosen ? "[" + name + "]" : " " + name + " ",
                          is_chosen ? kReverse : kPlain);
    }
    std::string right = "every " + short_number(settings().interval) + " s";
    if (!settings().filter.empty()) right = "only '" + settings().filter + "'  " + right;
    if (width() > column + 1) frame_.put_right(row_, width(), cut(right, width() - column - 1));
    ++row_;
  }

  std::vector<Pane> tables() const {
    std::vector<Pane> order;
    if (settings().pane != Pane::map) order.push_back(settings().pane);
    for (const Pane pane : {Pane::engines, Pane::domains, Pane::clients})
      if (settings().pane != Pane::map && pane != settings().pane) order.push_back(pane);
    return order;
  }

  void content() {
    bool is_first = true;
    for (const Pane pane : tables()) {
      const Grid grid = chosen_grid(pane, view_);
      const std::size_t room = bottom_ - row_, needed = grid.rows.size() + 1;
      if (!is_first && (grid.rows.empty() || needed + kStripRows > room)) continue;
      const std::size_t most = room > kStripRows ? room - kStripRows : room;
      const std::size_t lines = std::min(needed, most);
      draw_grid(frame_, row_, lines, grid, is_first ? settings().first_row : 0,
                settings().sort[std::size_t(pane)]);
      row_ += lines;
      if (grid.rows.empty() && is_first && row_ < bottom_)
        frame_.put(row_++, 0, settings().filter.empty() ? "none" : "none with this text", kFaint);
      is_first = false;
    }
    map();
  }

  void map() {
    const MapLook look{style_, MapGlyphs::letters};
    const PoolGeometry& geometry = snapshot().pool.geometry;
    std::size_t room = bottom_ - std::min(row_, bottom_);
    if (room < 2) return;
    const std::string by(to_string(snapshot().blocks.by));
    // The legend's rows do not depend on the scale.
    const Frame legend = draw_legend(snapshot().blocks.map(1u << 30), width(), look);
    const bool has_legend = room >= legend.size().height + 3;
    const std::size_t beside = 1 + (has_legend ? legend.size().height : 0);
    const PoolMap cells =
        snapshot().blocks.map(scale_for(geometry, {width(), room - beside}, MapGlyphs::letters));
    frame_.paint_row(row_, kReverse);
    frame_.put(row_++, 0, cut("map by " + by + ": " + scale_text(cells), width()), kReverse);
    const Frame drawn = draw_cells(cells, geometry, width(), look);
    frame_.put_frame(row_, drawn);
    row_ += drawn.size().height;
    if (has_legend) frame_.put_frame(row_, legend);
  }

  void footer() {
    const DaemonView& daemon = snapshot().daemon;
    const std::size_t row = height() - 1;
    if (settings().is_typing) {
      frame_.put(row, 0, cut("/" + settings().filter + "_   Enter: keep   Esc: all rows", width()));
      return;
    }
    if (daemon.state == DaemonState::answering) {
      frame_.put(row, 0,
                 cut("q quit  p pause  s sort  r reverse  / filter  b map by  ? help", width()),
                 kFaint);
      return;
    }
    frame_.paint_row(row, kReverse);
    frame_.put(row, 0, cut(trouble(), width()), kReverse);
  }

  /// Empty if kvhived answers.
  std::string trouble() const {
    const DaemonView& daemon = snapshot().daemon;
    if (daemon.state == DaemonState::answering) return "";
    std::string text = "! " + daemon.trouble;
    if (daemon.told_ago) text += "; names are " + seconds_text(*daemon.told_ago) + " old";
    return text;
  }

  const TopView& view_;
  OutputStyle style_;
  Frame frame_;
  std::size_t row_ = 0;
  std::size_t bottom_ = 0;  ///< content ends above this row
};

}  // namespace

Frame draw_top(const TopView& view, ScreenSize size, OutputStyle style) {
  if (size.width < kLeastSize.width || size.height < kLeastSize.height) {
    Frame frame(size);
    const std::string needs =
        std::to_string(kLeastSize.width) + " x " + std::to_string(kLeastSize.height);
    frame.put(0, 0, cut("kvhive top needs " + needs, size.width));
    frame.put(1, 0,
              cut("this is " + std::to_string(size.width) + " x " + std::to_string(size.height) +
                      "; q quits",
                  size.width));
    return frame;
  }
  TopPainter painter(view, size, style);
  if (view.settings.has_help) return std::move(painter).paint_help();
  return std::move(painter).paint(true);
}

Frame draw_plain(const TopView& view, std::size_t width, OutputStyle style) {
  constexpr std::size_t kHeader = 5, kMapRows = 12;
  std::size_t height = kHeader + kMapRows;
  for (const Pane pane : {Pane::engines, Pane::domains, Pane::clients})
    height += 1 + chosen_grid(pane, view).rows.size();
  return TopPainter(view, {std::max(width, kLeastSize.width), height}, style).paint(false);
}

std::size_t rows_of_pane(const TopView& view) {
  return view.settings.pane == Pane::map ? 0 : chosen_grid(view.settings.pane, view).rows.size();
}

}  // namespace kvhive
