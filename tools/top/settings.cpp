#include "tools/top/settings.hpp"

#include <algorithm>

namespace kvhive {
namespace {

constexpr auto kIntervals = std::to_array<double>({0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60});

constexpr auto kKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"q", "quit (Ctrl-C, too)"},
    {"p, space", "pause, and go on; the numbers stay as they are meanwhile"},
    {"1 2 3 4", "engines, domains, clients, map; Tab and Shift-Tab go round"},
    {"s, < >", "sort by the next column, or the one before (left, right)"},
    {"r", "reverse the order"},
    {"/", "show only rows with this text; Enter keeps it, Esc ends it"},
    {"b", "map by state, owner, domain, age, sharing, tier"},
    {"up, down", "scroll (page up, page down, home, end)"},
    {"+ -", "more or fewer frames"},
    {"?", "this help, and back"},
});

void type(Key key, TopSettings& settings) {
  switch (key.code) {
    case KeyCode::letter: settings.filter += key.letter; break;
    case KeyCode::backspace:
      // A character of UTF-8 goes whole.
      while (!settings.filter.empty()) {
        const char last = settings.filter.back();
        settings.filter.pop_back();
        if ((static_cast<unsigned char>(last) & 0xC0) != 0x80) break;
      }
      break;
    case KeyCode::escape: settings.filter.clear(); [[fallthrough]];
    case KeyCode::enter: settings.is_typing = false; break;
    default: break;
  }
  settings.first_row = 0;
}

void show(Pane pane, TopSettings& settings) {
  settings.pane = pane;
  settings.first_row = 0;
}

void turn_pane(TopSettings& settings, std::size_t steps) {
  show(Pane((std::size_t(settings.pane) + steps) % names_of(Pane{}).size()), settings);
}

void turn_sort(TopSettings& settings, bool is_forward) {
  if (settings.pane == Pane::map) return;
  std::size_t& column = settings.sort[std::size_t(settings.pane)];
  const std::size_t columns = grid_of(settings.pane, {}, {}).columns.size();
  column = (column + (is_forward ? 1 : columns - 1)) % columns;
}

void change_interval(TopSettings& settings, bool is_faster) {
  const double now = settings.interval;
  if (is_faster) {
    const auto next = std::find_if(kIntervals.rbegin(), kIntervals.rend(),
                                   [&](double other) { return other < now; });
    if (next != kIntervals.rend()) settings.interval = *next;
  } else {
    const auto next = std::find_if(kIntervals.begin(), kIntervals.end(),
                                   [&](double other) { return other > now; });
    if (next != kIntervals.end()) settings.interval = *next;
  }
}

void scroll(TopSettings& settings, std::size_t rows, std::ptrdiff_t by) {
  const auto last = static_cast<std::ptrdiff_t>(rows != 0 ? rows - 1 : 0);
  settings.first_row = static_cast<std::size_t>(
      std::clamp(static_cast<std::ptrdiff_t>(settings.first_row) + by, std::ptrdiff_t{0}, last));
}

TopAction apply_letter(char letter, TopSettings& settings) {
  switch (letter) {
    case 'q': return TopAction::quit;
    case 'p':
    case ' ':
      settings.is_paused = !settings.is_paused;
      return settings.is_paused ? TopAction::redraw : TopAction::read_again;
    case 's':
    case '>': turn_sort(settings, true); break;
    case '<': turn_sort(settings, false); break;
    case 'r':
      if (settings.pane != Pane::map) {
        bool& is_reversed = settings.is_reversed[std::size_t(settings.pane)];
        is_reversed = !is_reversed;
      }
      break;
    case '/': settings.is_typing = true; break;
    case 'b':
      settings.by = MapBy((std::size_t(settings.by) + 1) % names_of(MapBy{}).size());
      return TopAction::read_again;
    case '1':
    case '2':
    case '3':
    case '4': show(Pane(letter - '1'), settings); break;
    case '+': change_interval(settings, true); return TopAction::read_again;
    case '-': change_interval(settings, false); return TopAction::read_again;
    case 'h':
    case '?': settings.has_help = true; break;
    default: break;
  }
  return TopAction::redraw;
}

}  // namespace

TopAction apply(Key key, TopSettings& settings, std::size_t rows) {
  constexpr std::ptrdiff_t kPage = 10, kAll = 1 << 30;
  if (settings.is_typing) {
    type(key, settings);
    return TopAction::redraw;
  }
  if (settings.has_help) {  // any key leads back
    settings.has_help = false;
    return key == Key{KeyCode::letter, 'q'} ? TopAction::quit : TopAction::redraw;
  }
  switch (key.code) {
    case KeyCode::letter: return apply_letter(key.letter, settings);
    case KeyCode::tab: turn_pane(settings, 1); break;
    case KeyCode::back_tab: turn_pane(settings, names_of(Pane{}).size() - 1); break;
    case KeyCode::left: turn_sort(settings, false); break;
    case KeyCode::right: turn_sort(settings, true); break;
    case KeyCode::up: scroll(settings, rows, -1); break;
    case KeyCode::down: scroll(settings, rows, 1); break;
    case KeyCode::page_up: scroll(settings, rows, -kPage); break;
    case KeyCode::page_down: scroll(settings, rows, kPage); break;
    case KeyCode::home: scroll(settings, rows, -kAll); break;
    case KeyCode::end: scroll(settings, rows, kAll); break;
    case KeyCode::escape: settings.filter.clear(); break;
    default: break;
  }
  return TopAction::redraw;
}

std::span<const std::pair<std::string_view, std::string_view>> key_help() { return kKeys; }

}  // namespace kvhive
