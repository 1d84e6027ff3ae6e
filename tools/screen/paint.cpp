#include "tools/screen/paint.hpp"

namespace kvhive {
namespace {

/// A place of the 6 x 6 x 6 cube of 256-colour terminals: its levels are 0, 95, 135, ... 255.
int cube_level(int value) { return value < 48 ? 0 : value < 115 ? 1 : (value - 35) / 40; }

std::string colour_code(Colour colour, Colours colours, bool is_ground) {
  const std::string begin = is_ground ? ";48" : ";38";
  switch (colours) {
    case Colours::none: return "";
    case Colours::basic: {
      const int base = (is_ground ? 40 : 30) + (colour.basic >= 8 ? 60 : 0);
      return ";" + std::to_string(base + colour.basic % 8);
    }
    case Colours::many:
      return begin + ";5;" +
             std::to_string(16 + 36 * cube_level(colour.red) + 6 * cube_level(colour.green) +
                            cube_level(colour.blue));
    case Colours::all:
      return begin + ";2;" + std::to_string(colour.red) + ";" + std::to_string(colour.green) + ";" +
             std::to_string(colour.blue);
  }
  return "";
}

/// Bold and reverse are no colours: they stay where NO_COLOR is set.
std::string style_code(const Style& style, Colours colours) {
  std::string code = "\033[0";
  if (style.is_bold) code += ";1";
  if (style.is_faint) code += ";2";
  if (style.is_reverse) code += ";7";
  if (style.ground) code += colour_code(*style.ground, colours, true);
  if (style.ink) code += colour_code(*style.ink, colours, false);
  return code + "m";
}

std::string painted_row(const Frame& frame, std::size_t row, Colours colours) {
  std::size_t end = frame.size().width;
  const FrameCell blank;
  while (end != 0 && frame.at(row, end - 1) == blank) --end;
  std::string line;
  Style style;
  for (std::size_t column = 0; column < end; ++column) {
    const FrameCell& cell = frame.at(row, column);
    if (cell.letter == 0) continue;
    if (cell.style != style) {
      line += style_code(cell.style, colours);
      style = cell.style;
    }
    append_utf8(line, cell.letter);
  }
  if (style != kPlain) line += "\033[0m";
  return line;
}

bool is_same_row(const Frame& a, const Frame& b, std::size_t row) {
  for (std::size_t column = 0; column < a.size().width; ++column)
    if (a.at(row, column) != b.at(row, column)) return false;
  return true;
}

}  // namespace

std::string printed(const Frame& frame, Colours colours) {
  if (colours == Colours::none) return frame.text();
  std::string text;
  for (std::size_t row = 0; row < frame.size().height; ++row)
    text += painted_row(frame, row, colours) + "\n";
  return text;
}

std::string repainted(const Frame* before, const Frame& now, Colours colours) {
  const bool is_whole = before == nullptr || before->size() != now.size();
  std::string lines;
  for (std::size_t row = 0; row < now.size().height; ++row) {
    if (!is_whole && is_same_row(*before, now, row)) continue;
    lines += "\033[" + std::to_string(row + 1) + ";1H" + painted_row(now, row, colours);
    // Behind a full row the cursor still stands on the last column, and would erase it.
    if (now.at(row, now.size().width - 1) == FrameCell{}) lines += "\033[K";
  }
  if (lines.empty()) return "";
  // Terminals that know mode 2026 show the frame when it is whole; others ignore it.
  return "\033[?2026h" + std::string(is_whole ? "\033[H\033[2J" : "") + lines + "\033[?2026l";
}

}  // namespace kvhive
