#pragma once
// Fields of requests that kvhive does not know. They change nothing, as in vLLM; so a name that is
// misspelt never fails. They are counted, and each name is logged once.

#include <cstdint>
#include <set>
#include <string>

#include "tools/serve/openai/fields.hpp"

namespace kvhive {

class UnknownFields {
 public:
  /// So many names are remembered and logged, of so many bytes: clients can invent names without
  /// end.
  static constexpr std::size_t kMostNames = 64;
  static constexpr std::size_t kMostBytes = 64;

  /// Counts the fields of one request, and logs those names that are new.
  void add(const Fields::Unknown& fields);
  /// Fields so far, of all requests.
  std::uint64_t count() const { return count_; }

  /// A name as the log shows it: what is no printable ASCII as '?', and not all of a long one.
  static std::string shown(const std::string& name);

 private:
  std::uint64_t count_ = 0;
  std::set<std::string> logged_;
};

}  // namespace kvhive
