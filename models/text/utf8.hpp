#pragma once
// UTF-8, checked and streamed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvhive {

/// What the bytes at the front of a text are.
struct Utf8Head {
  enum class Kind : std::uint8_t {
    character,   ///< `bytes` bytes are one code point
    incomplete,  ///< all `bytes` bytes left could begin one
    invalid,     ///< `bytes` bytes can be part of none (a "maximal subpart", Unicode 3.9)
  };
  Kind kind = Kind::invalid;
  std::size_t bytes = 0;
  char32_t code_point = 0;  ///< of a character
};

/// \param text  not empty
Utf8Head utf8_head(std::string_view text);

/// Offset of the first byte that is not valid UTF-8.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// How many code points a valid text has.
std::size_t characters(std::string_view text);

std::string utf8_of(char32_t code_point);

/// Unicode's White_Space property.
bool is_white_space(char32_t code_point);

/// Turns any bytes that arrive in pieces into pieces of valid UTF-8. Incomplete sequences are held
/// back, invalid ones become U+FFFD. However the bytes are cut, the pieces concatenate to the same
/// text.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  /// What is still held back, as U+FFFD; the stream is then empty.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace kvhive
