#include "tools/screen/keys.hpp"

#include <array>
#include <utility>

namespace kvhive {
namespace {

/// What follows ESC [ or ESC O.
constexpr auto kSequences = std::to_array<std::pair<std::string_view, KeyCode>>({
    {"A", KeyCode::up},
    {"B", KeyCode::down},
    {"C", KeyCode::right},
    {"D", KeyCode::left},
    {"H", KeyCode::home},
    {"F", KeyCode::end},
    {"Z", KeyCode::back_tab},
    {"1~", KeyCode::home},
    {"4~", KeyCode::end},
    {"5~", KeyCode::page_up},
    {"6~", KeyCode::page_down},
});

KeyCode code_of(std::string_view sequence) {
  for (const auto& [text, code] : kSequences)
    if (text == sequence) return code;
  return KeyCode::unknown;
}

bool is_final(char byte) { return byte >= '@' && byte <= '~'; }

/// Takes a sequence behind ESC from the front of `bytes`.
Key take_sequence(std::string_view& bytes) {
  bytes.remove_prefix(1);  // [ or O
  std::size_t length = 0;
  while (length < bytes.size() && !is_final(bytes[length])) ++length;
  if (length < bytes.size()) ++length;
  const Key key{code_of(bytes.substr(0, length)), 0};
  bytes.remove_prefix(length);
  return key;
}

Key plain_key(char byte) {
  switch (byte) {
    case '\r':
    case '\n': return {KeyCode::enter, 0};
    case '\t': return {KeyCode::tab, 0};
    case '\b':
    case '\x7f': return {KeyCode::backspace, 0};
    default: break;
  }
  const bool is_control = static_cast<unsigned char>(byte) < 0x20;
  return is_control ? Key{KeyCode::unknown, 0} : Key{KeyCode::letter, byte};
}

}  // namespace

std::vector<Key> keys_in(std::string_view bytes) {
  std::vector<Key> keys;
  while (!bytes.empty()) {
    const char first = bytes.front();
    bytes.remove_prefix(1);
    if (first != '\033')
      keys.push_back(plain_key(first));
    else if (!bytes.empty() && (bytes.front() == '[' || bytes.front() == 'O'))
      keys.push_back(take_sequence(bytes));
    else
      keys.push_back({KeyCode::escape, 0});
  }
  return keys;
}

}  // namespace kvhive
