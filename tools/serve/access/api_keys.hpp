#pragma once
// The keys of callers, and the domain that each of them runs in.

#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"

namespace kvhive {

class ApiKeys {
 public:
  struct Key {
    std::string text;
    std::string domain;      ///< empty = the one that the operator's rules give the service's user
    std::size_t number = 0;  ///< from 1 on, in the file's order
  };

  /// No keys: everybody may ask.
  ApiKeys() = default;

  /// Reads a file with one KEY or KEY DOMAIN a line; blank lines and those that begin with # are
  /// left out. Others than its owner must not be able to write to the file. Errors name file, line
  /// and remedy, and never a key.
  [[nodiscard]] static Expected<ApiKeys> load(const std::string& path);
  [[nodiscard]] static Expected<ApiKeys> parse(const std::string& text, const std::string& path);

  bool empty() const { return keys_.empty(); }
  /// The key in a header "Authorization: Bearer KEY"; null = it is none of these. Takes as long for
  /// a wrong key as for a right one.
  const Key* find(std::string_view authorization) const;
  /// Each once, in the order of their names; one empty name if there are no keys.
  std::vector<std::string> domains() const;

 private:
  std::vector<Key> keys_;
};

}  // namespace kvhive
