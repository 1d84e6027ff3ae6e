#include "models/text/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

namespace kvhive {
namespace {

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

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
  int match(std::string_view text, std::size_t start, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int result =
        pcre2_match(code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, nullptr);
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return pcre2_match(code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, nullptr);
  }
};

Expected<Regex> Regex::compile(const std::string& pattern, Syntax syntax) {
  const std::uint32_t options =
      PCRE2_UTF | (syntax == Syntax::literal ? PCRE2_LITERAL : std::uint32_t{PCRE2_UCP});
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &error, &offset, nullptr));
  if (!code->code)
    return failure(Errc::unsupported, "regular expression " + pattern + ": " + message_of(error) +
                                          " at offset " + std::to_string(offset));
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);  // where it fails matching interprets
  return Regex(std::move(code));
}

Expected<std::size_t> Regex::for_each_match(
    std::string_view text, const std::function<void(std::size_t, std::size_t)>& found) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr),
                       pcre2_match_data_free);
  std::size_t count = 0;
  std::size_t start = 0;
  while (start < text.size()) {
    const int result = code_->match(text, start, data.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      return failure(Errc::unsupported, "regular expression failed at byte " +
                                            std::to_string(start) +
                                            " of the text: " + message_of(result));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] > range[0]) {
      found(range[0], range[1]);
      ++count;
      start = range[1];
    } else {
      // An empty match: on to the next code point.
      start = range[1] + 1;
      while (start < text.size() && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80)
        ++start;
    }
  }
  return count;
}

}  // namespace kvhive
