#include "tools/serve/tensor/base64.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.hpp"

namespace kvhive {
namespace {

constexpr std::array<bool, 256> letters() {
  std::array<bool, 256> are{};
  for (const char* ranges : {"AZ", "az", "09", "++", "//"})
    for (unsigned char letter = ranges[0]; letter <= ranges[1]; ++letter) are[letter] = true;
  return are;
}

/// Where the text stops being base64's letters.
std::size_t end_of_letters(std::string_view text) {
  static constexpr std::array<bool, 256> kLetters = letters();
  const auto end = std::ranges::find_if(
      text, [](char letter) { return !kLetters[static_cast<unsigned char>(letter)]; });
  return static_cast<std::size_t>(end - text.begin());
}

}  // namespace

/// OpenSSL leaves out what is around the text, and takes padding anywhere. So the text is looked
/// through before.
Expected<std::vector<std::byte>> decode_base64(std::string_view text) {
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const std::size_t wrong = end_of_letters(text.substr(0, text.size() - padding));
  if (wrong != text.size() - padding)
    return failure(Errc::bad_format, "is no base64 from byte " + std::to_string(wrong) +
                                         " on; send letters, digits, + and /, without line breaks");
  if (text.size() % 4 != 0)
    return failure(Errc::bad_format,
                   "has " + std::to_string(text.size()) +
                       " bytes of base64, no multiple of 4: it was cut, or lacks its padding (=)");
  constexpr std::size_t kAtATime = std::size_t{1} << 24;  // OpenSSL counts in int
  std::vector<std::byte> bytes(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += kAtATime) {
    const std::string_view piece = text.substr(at, kAtATime);
    const int made = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data() + at / 4 * 3),
                                     reinterpret_cast<const unsigned char*>(piece.data()),
                                     static_cast<int>(piece.size()));
    KV_CHECK(made >= 0 && static_cast<std::size_t>(made) == piece.size() / 4 * 3, made);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace kvhive
