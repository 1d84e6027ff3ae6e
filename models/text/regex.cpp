#include "models/text/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "models/text/oniguruma.hpp"

namespace kvhive {
namespace {

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

constexpr std::size_t kLeastMatchLimit = 10'000'000;  ///< PCRE2's own
constexpr std::size_t kMatchLimitPerByte = 32;
constexpr std::uint32_t kHeapLimitKib = 256 << 10;

/// A run of n spaces costs such a pattern as \s*[\r\n]+|\s+ about n steps in one match, so that the
/// limit grows with the text; a pattern that backtracks beyond that is stopped.
MatchContext limits_for(std::size_t text_bytes) {
  MatchContext context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::size_t limit = std::max(kLeastMatchLimit, text_bytes * kMatchLimitPerByte);
  pcre2_set_match_limit(context.get(),
                        static_cast<std::uint32_t>(std::min<std::size_t>(limit, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  return context;
}

std::size_t next_character(std::string_view text, std::size_t at) {
  ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};

  /// One match from `start` on, or PCRE2's negative code. The JIT runs on a small stack of its own;
  /// where that is not enough the interpreter, which uses the heap, takes over.
  int match(std::string_view text, std::size_t start, pcre2_match_data* data,
            pcre2_match_context* limits) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int result =
        pcre2_match(code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, limits);
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return pcre2_match(code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, limits);
  }
};

Expected<Regex> Regex::compile(const std::string& pattern, Syntax syntax) {
  if (syntax == Syntax::literal) return compile_pcre2(pattern, pattern, PCRE2_UTF | PCRE2_LITERAL);
  const auto translated = oniguruma_to_pcre2(pattern);
  if (!translated) return forward_error(translated);
  return compile_pcre2(pattern, *translated, PCRE2_UTF);
}

Expected<Regex> Regex::compile_pcre2(const std::string& written, const std::string& pattern,
                                     std::uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &error, &offset, nullptr));
  if (!code->code)
    return failure(Errc::unsupported, "regular expression " + written +
                                          ": PCRE2: " + message_of(error) + " at offset " +
                                          std::to_string(offset) + " of " + pattern);
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // where it fails matching interprets
  return Regex(std::move(code));
}

Expected<std::size_t> Regex::for_each_match(
    std::string_view text, const std::function<void(std::size_t, std::size_t)>& found) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr),
                       pcre2_match_data_free);
  const MatchContext limits = limits_for(text.size());
  std::size_t count = 0;
  std::size_t start = 0;
  std::optional<std::size_t> last_end;
  while (start < text.size()) {
    const int result = code_->match(text, start, data.get(), limits.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      return failure(Errc::unsupported, "regular expression failed at byte " +
                                            std::to_string(start) +
                                            " of the text: " + message_of(result));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const bool is_empty = range[0] == range[1];
    if (is_empty && last_end == range[1]) {
      start = next_character(text, start);
      continue;
    }
    found(range[0], range[1]);
    ++count;
    start = range[1];
    last_end = start;
  }
  return count;
}

std::string text_unicode_version() {
  std::array<char, 64> unicode{}, version{};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode.data());
  pcre2_config(PCRE2_CONFIG_VERSION, version.data());  // "10.42 2022-12-11"
  const std::string_view dated = version.data();
  return std::string("Unicode ") + unicode.data() + " (PCRE2 " +
         std::string(dated.substr(0, dated.find(' '))) + "), " + utf8proc_unicode_version() +
         " (utf8proc " + utf8proc_version() + ")";
}

}  // namespace kvhive
