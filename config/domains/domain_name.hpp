#pragma once
// How the names of domains are spelt.

#include <cstddef>
#include <string_view>

namespace kvhive {

inline constexpr std::size_t kLongestDomainName = 32;

[[nodiscard]] constexpr bool is_domain_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= kLongestDomainName &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

/// The same in words, for errors.
inline constexpr const char* kDomainNameRule = "1 to 32 letters, digits, '.', '_' and '-'";

}  // namespace kvhive
