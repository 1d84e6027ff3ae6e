#pragma once
// One screenful: a grid of cells that each hold one character and its style. Views write frames;
// tests read them as text.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/screen/colour.hpp"

namespace kvhive {

/// In columns and rows.
struct ScreenSize {
  std::size_t width = 80, height = 24;
  friend constexpr bool operator==(ScreenSize, ScreenSize) = default;
};

struct Style {
  std::optional<Colour> ink, ground;  ///< none = the terminal's own
  bool is_bold = false, is_faint = false, is_reverse = false;
  friend constexpr bool operator==(const Style&, const Style&) = default;
};
inline constexpr Style kPlain{};
inline constexpr Style kBold{{}, {}, true, false, false};
inline constexpr Style kFaint{{}, {}, false, true, false};
inline constexpr Style kReverse{{}, {}, false, false, true};

struct FrameCell {
  char32_t letter = U' ';  ///< 0 = the right half of the wide character before it
  Style style;
  friend constexpr bool operator==(const FrameCell&, const FrameCell&) = default;
};

/// Columns that a character takes on a terminal: 0, 1 or 2.
std::size_t width_of(char32_t letter);
std::size_t width_of(std::string_view utf8);

/// The beginning of a text, cut to `width` columns and not within a character. If something is cut
/// off, the last column is `mark`.
std::string cut(std::string_view utf8, std::size_t width, char mark = '~');

class Frame {
 public:
  explicit Frame(ScreenSize size) : size_(size), cells_(size.width * size.height) {}

  ScreenSize size() const { return size_; }
  const FrameCell& at(std::size_t row, std::size_t column) const {
    return cells_[row * size_.width + column];
  }

  /// Writes text into one row, up to the row's end; returns the column behind it. What lies outside
  /// of the frame is dropped. Control characters become '?': a name that another user has chosen
  /// must not command the terminal.
  std::size_t put(std::size_t row, std::size_t column, std::string_view utf8, Style style = kPlain);
  /// The same, with the text's last column before `end`.
  void put_right(std::size_t row, std::size_t end, std::string_view utf8, Style style = kPlain);
  void put_letter(std::size_t row, std::size_t column, char32_t letter, Style style);
  /// Gives a whole row a style.
  void paint_row(std::size_t row, Style style);
  /// Copies the rows of another frame below `row`.
  void put_frame(std::size_t row, const Frame& other);

  /// The rows without styles, each ended by a newline, without the blanks at their ends.
  std::string text() const;

  friend bool operator==(const Frame&, const Frame&) = default;

 private:
  ScreenSize size_;
  std::vector<FrameCell> cells_;
};

/// Appends a character in UTF-8.
void append_utf8(std::string& text, char32_t letter);

}  // namespace kvhive
