#include "tools/map/svg.hpp"

#include <map>
#include <tuple>

namespace kvhive {
namespace {

std::string hex(Colour colour) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "#";
  for (const std::uint8_t part : {colour.red, colour.green, colour.blue}) {
    text += kDigits[part / 16];
    text += kDigits[part % 16];
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += letter;
    }
  }
  return result;
}

std::string number(int value) { return std::to_string(value); }

std::string path_of(const Drawing::Box& box) {
  return "M" + number(box.x) + " " + number(box.y) + "h" + number(box.width) + "v" +
         number(box.height) + "h-" + number(box.width) + "z";
}

/// Single letters of one row and colour are one element with a list of places.
struct RowOfLetters {
  std::string places, letters;
};

std::string text_element(const std::string& x, int y, int scale, Colour colour,
                         const std::string& text, int width) {
  std::string element = "<text x=\"" + x + "\" y=\"" + number(y + kCapitalHeight * scale) +
                        "\" font-size=\"" + number(9 * scale) + "\" fill=\"" + hex(colour) + "\"";
  if (width != 0) element += " textLength=\"" + number(width) + "\"";
  return element + ">" + escaped(text) + "</text>\n";
}

}  // namespace

std::string svg_of(const Drawing& drawing) {
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(drawing.width) +
                    "\" height=\"" + number(drawing.height) + "\" viewBox=\"0 0 " +
                    number(drawing.width) + " " + number(drawing.height) +
                    "\" font-family=\"monospace\" xml:space=\"preserve\">\n";
  // The first box is the paper; no other boxes overlap, so their order does not matter.
  std::map<std::string, std::string> paths;
  for (std::size_t i = 1; i < drawing.boxes.size(); ++i)
    paths[hex(drawing.boxes[i].colour)] += path_of(drawing.boxes[i]);
  if (!drawing.boxes.empty())
    svg += "<path fill=\"" + hex(drawing.boxes[0].colour) + "\" d=\"" + path_of(drawing.boxes[0]) +
           "\"/>\n";
  for (const auto& [colour, path] : paths)
    svg += "<path fill=\"" + colour + "\" d=\"" + path + "\"/>\n";

  std::map<std::tuple<int, int, std::string>, std::pair<RowOfLetters, Colour>> rows;
  for (const Drawing::Label& label : drawing.labels) {
    if (label.text.size() != 1) {
      svg += text_element(number(label.x), label.y, label.scale, label.colour, label.text,
                          static_cast<int>(label.text.size()) * kLetterWidth * label.scale);
      continue;
    }
    auto& [row, colour] = rows[{label.y, label.scale, hex(label.colour)}];
    row.places += (row.places.empty() ? "" : " ") + number(label.x);
    row.letters += label.text;
    colour = label.colour;
  }
  for (const auto& [place, row] : rows)
    svg += text_element(row.first.places, std::get<0>(place), std::get<1>(place), row.second,
                        row.first.letters, 0);
  return svg + "</svg>\n";
}

}  // namespace kvhive
