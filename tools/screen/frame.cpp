#include "tools/screen/frame.hpp"

#include <utf8proc.h>

#include <algorithm>

namespace kvhive {
namespace {

constexpr char32_t kReplacement = U'?';

/// Calls visit(character, its bytes). A byte that is no UTF-8, and a control character, is '?'.
template <class Visit>
void for_each_letter(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    utf8proc_int32_t letter = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &letter);
    const std::size_t bytes = read > 0 ? static_cast<std::size_t>(read) : 1;
    const auto category = read > 0 ? utf8proc_category(letter) : UTF8PROC_CATEGORY_CC;
    const bool is_control = category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
                            category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
    visit(is_control ? kReplacement : static_cast<char32_t>(letter), text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

}  // namespace

std::size_t width_of(char32_t letter) {
  return static_cast<std::size_t>(
      std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(letter))));
}

std::size_t width_of(std::string_view utf8) {
  std::size_t width = 0;
  for_each_letter(utf8, [&](char32_t letter, std::string_view) { width += width_of(letter); });
  return width;
}

std::string cut(std::string_view utf8, std::size_t width, char mark) {
  if (width_of(utf8) <= width) return std::string(utf8);
  if (width == 0) return "";
  std::string text;
  std::size_t taken = 0;
  bool is_full = false;
  for_each_letter(utf8, [&](char32_t letter, std::string_view bytes) {
    is_full = is_full || taken + width_of(letter) > width - 1;
    if (is_full) return;
    taken += width_of(letter);
    text += bytes;
  });
  return text + mark;
}

std::size_t Frame::put(std::size_t row, std::size_t column, std::string_view utf8, Style style) {
  for_each_letter(utf8, [&](char32_t letter, std::string_view) {
    const std::size_t width = width_of(letter);
    if (width == 0) return;  // combining marks have no cell
    put_letter(row, column, column + width <= size_.width ? letter : U' ', style);
    if (width == 2) put_letter(row, column + 1, 0, style);
    column += width;
  });
  return column;
}

void Frame::put_right(std::size_t row, std::size_t end, std::string_view utf8, Style style) {
  const std::string text = cut(utf8, end);
  put(row, end - width_of(text), text, style);
}

void Frame::put_letter(std::size_t row, std::size_t column, char32_t letter, Style style) {
  if (row >= size_.height || column >= size_.width) return;
  cells_[row * size_.width + column] = {letter, style};
}

void Frame::paint_row(std::size_t row, Style style) {
  if (row >= size_.height) return;
  for (std::size_t i = 0; i < size_.width; ++i) cells_[row * size_.width + i].style = style;
}

void Frame::put_frame(std::size_t row, const Frame& other) {
  for (std::size_t r = 0; r < other.size_.height; ++r)
    for (std::size_t c = 0; c < other.size_.width; ++c)
      put_letter(row + r, c, other.at(r, c).letter, other.at(r, c).style);
}

std::string Frame::text() const {
  std::string text;
  for (std::size_t row = 0; row < size_.height; ++row) {
    std::string line;
    for (std::size_t column = 0; column < size_.width; ++column)
      if (at(row, column).letter != 0) append_utf8(line, at(row, column).letter);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void append_utf8(std::string& text, char32_t letter) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(letter), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

}  // namespace kvhive
