#pragma once
// A block's name in hexadecimal, for stores whose keys are text.

#include <array>
#include <cstring>
#include <string_view>

#include "hashing/block_hash.hpp"

namespace kvhive::bench {

class HexName {
 public:
  explicit HexName(Hash128 name) {
    std::array<unsigned char, sizeof name> bytes;
    std::memcpy(bytes.data(), &name, sizeof name);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      text_[2 * i] = kDigits[bytes[i] >> 4];
      text_[2 * i + 1] = kDigits[bytes[i] & 15];
    }
  }
  std::string_view view() const { return {text_.data(), text_.size()}; }

 private:
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<char, 2 * sizeof(Hash128)> text_;
};

}  // namespace kvhive::bench
