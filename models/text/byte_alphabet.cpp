#include "models/text/byte_alphabet.hpp"

#include <unordered_map>

#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

/// Latin-1's visible characters stand for themselves, the other bytes for U+0100 and up in order.
std::unordered_map<char32_t, char> make_alphabet() {
  const auto visible = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  };
  std::unordered_map<char32_t, char> alphabet;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    alphabet.emplace(visible(byte) ? static_cast<char32_t>(byte) : next++, static_cast<char>(byte));
  return alphabet;
}

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  static const auto alphabet = make_alphabet();
  std::string bytes;
  while (!spelling.empty()) {
    const auto head = utf8_head(spelling);
    if (head.kind != Utf8Head::Kind::character) return std::nullopt;
    const auto found = alphabet.find(head.code_point);
    if (found == alphabet.end()) return std::nullopt;
    bytes += found->second;
    spelling.remove_prefix(head.bytes);
  }
  return bytes;
}

}  // namespace kvhive
