#pragma once
// What is typed, from the bytes that a terminal sends.

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvhive {

enum class KeyCode : std::uint8_t {
  letter,  ///< Key::letter says which
  escape,
  enter,
  backspace,
  tab,
  back_tab,
  up,
  down,
  left,
  right,
  page_up,
  page_down,
  home,
  end,
  unknown,  ///< a sequence of no use here
};

struct Key {
  KeyCode code = KeyCode::letter;
  char letter = 0;
  friend constexpr bool operator==(Key, Key) = default;
};

/// The keys of one read. A terminal sends a key's bytes in one piece, so an ESC at the end of what
/// was read is the key of that name.
std::vector<Key> keys_in(std::string_view bytes);

}  // namespace kvhive
