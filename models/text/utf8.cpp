#include "models/text/utf8.hpp"

#include <algorithm>
#include <array>

namespace kvhive {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Which second bytes may follow a lead byte: keeps out overlong forms, surrogates and what lies
/// beyond U+10FFFF (Unicode standard, table 3-7).
struct Lead {
  std::size_t length = 0;  ///< 0: not a lead byte
  std::uint8_t second_least = 0x80;
  std::uint8_t second_most = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Head utf8_head(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Utf8Head::Kind::invalid, 1};
  if (lead.length == 1) return {Utf8Head::Kind::character, 1, byte(0)};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Head::Kind::incomplete, i};
    const std::uint8_t least = i == 1 ? lead.second_least : 0x80;
    const std::uint8_t most = i == 1 ? lead.second_most : 0xBF;
    if (byte(i) < least || byte(i) > most) return {Utf8Head::Kind::invalid, i};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {Utf8Head::Kind::character, lead.length, code_point};
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto head = utf8_head(text.substr(at));
    if (head.kind != Utf8Head::Kind::character) return at;
    at += head.bytes;
  }
  return std::nullopt;
}

std::size_t characters(std::string_view text) {
  const auto begins_one = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  };
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_one));
}

std::string utf8_of(char32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3F));
  };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

bool is_white_space(char32_t code_point) {
  constexpr std::array<char32_t, 9> kLone{0x20,   0x85,   0xA0,   0x1680, 0x2028,
                                          0x2029, 0x202F, 0x205F, 0x3000};
  return (code_point >= 0x09 && code_point <= 0x0D) ||
         (code_point >= 0x2000 && code_point <= 0x200A) ||
         std::ranges::find(kLone, code_point) != kLone.end();
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < held_.size()) {
    const auto head = utf8_head(std::string_view(held_).substr(at));
    if (head.kind == Utf8Head::Kind::incomplete) break;
    if (head.kind == Utf8Head::Kind::character)
      out.append(held_, at, head.bytes);
    else
      out += kReplacement;
    at += head.bytes;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  if (held_.empty()) return {};
  held_.clear();  // at most one incomplete sequence is ever held
  return std::string(kReplacement);
}

}  // namespace kvhive
