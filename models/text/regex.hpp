#pragma once
// The regular expressions of tokenizer.json, over UTF-8: Oniguruma's syntax, run by PCRE2.

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

  /// \return  an error that names the pattern if it is not understood (models/text/oniguruma.hpp)
  [[nodiscard]] static Expected<Regex> compile(const std::string& pattern,
                                               Syntax syntax = Syntax::pattern);

  /// Calls found(begin, end) for every match, left to right. A match may be empty, but does not
  /// directly follow another one then: so Hugging Face's library counts.
  /// \param text  valid UTF-8
  /// \return      the number of matches; an error if a match takes more than 32 steps for each byte
  ///              of the text (at least 10 million), or 256 MiB of memory
  [[nodiscard]] Expected<std::size_t> for_each_match(
      std::string_view text, const std::function<void(std::size_t, std::size_t)>& found) const;

 private:
  struct Code;

  /// \param written  the pattern as error texts show it
  [[nodiscard]] static Expected<Regex> compile_pcre2(const std::string& written,
                                                     const std::string& pattern,
                                                     std::uint32_t options);
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

/// Which Unicode the tokenizers follow: "Unicode 14.0.0 (PCRE2 10.42), 15.0.0 (utf8proc 2.8.0)".
/// The first decides which characters are letters or digits, the second how NFC and its like
/// compose. A character that is newer counts as unassigned: it is neither letter nor digit.
std::string text_unicode_version();

}  // namespace kvhive
