#pragma once
// The regular expressions of tokenizer.json are Oniguruma's, which Hugging Face's library runs;
// kvhive runs PCRE2.

#include <string>

#include "base/expected.hpp"

namespace kvhive {

/// A PCRE2 pattern (PCRE2_UTF, no other option) that matches what Oniguruma matches with this one.
///
/// Both read most of their syntax alike, so that a pattern handed over as it is compiles and now
/// and then matches something else: \s, \w, \h, \v, $, ^, .+ behind (?m), [a&&b], x{1,3}+, \p{Han}.
/// Hence only what is known to mean the same, or can be written so, is let through. The rest
/// (backreferences, calls, conditions, callouts, (?x), octal escapes, (?i) over more than ASCII) is
/// refused with the pattern, the place and the reason.
/// \return  no capturing groups: only a match's bounds are of use here
[[nodiscard]] Expected<std::string> oniguruma_to_pcre2(const std::string& pattern);

}  // namespace kvhive
