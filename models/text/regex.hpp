#pragma once
// PCRE2 behind a value type: the regular expressions of tokenizer.json, over UTF-8 with Unicode
// classes.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/expected.hpp"

namespace kvhive {

/// Copies share one compiled pattern. Const and thread-safe.
class Regex {
 public:
  enum class Syntax : std::uint8_t { pattern, literal };

  static Expected<Regex> compile(const std::string& pattern, Syntax syntax = Syntax::pattern);

  /// Calls found(begin, end) for every match that is not empty, left to right.
  /// \param text  valid UTF-8
  /// \return      the number of matches; an error if the pattern backtracks beyond PCRE2's limit
  Expected<std::size_t> for_each_match(
      std::string_view text, const std::function<void(std::size_t, std::size_t)>& found) const;

 private:
  struct Code;

  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

}  // namespace kvhive
