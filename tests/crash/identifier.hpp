#pragma once
// The name of an operation as a part of a test's name.

#include <cctype>
#include <string>

namespace kvhive::testing {

/// "match: idle blocks" becomes MatchIdleBlocks.
inline std::string identifier(const std::string& name) {
  std::string joined;
  bool starts_word = true;
  for (const char letter : name) {
    const auto c = static_cast<unsigned char>(letter);
    if (std::isalnum(c) != 0) joined += static_cast<char>(starts_word ? std::toupper(c) : c);
    starts_word = std::isalnum(c) == 0;
  }
  return joined;
}

}  // namespace kvhive::testing
