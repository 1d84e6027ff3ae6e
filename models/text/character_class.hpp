#pragma once
// Character classes of Oniguruma's syntax, and the escapes that classes and plain patterns share.

#include <cstdint>
#include <optional>
#include <string>

#include "models/text/code_point_set.hpp"
#include "models/text/pattern_reader.hpp"

namespace kvhive {

enum class Case : std::uint8_t { exact, ignored };

/// A class whose '[' has been read, up to and with its ']': ranges, escapes, [:names:], classes
/// within the class and intersections (&&).
/// \return  a PCRE2 pattern that matches the same single code points
std::string read_class(PatternReader& reader, Case letter_case);

/// The set of a \p{...} or \P{...} whose 'p' or 'P' has been read.
CodePointSet read_property(PatternReader& reader, char32_t letter);

/// The code point of an escape whose letter has been read: \n, \x41, \x{1F600}, \u0041, \., ...
/// Nothing if the letter means something else, or nothing that kvhive knows.
std::optional<char32_t> read_code_point_escape(PatternReader& reader, char32_t letter);

/// One code point as PCRE2 writes it; with Case::ignored a class of the code points that are equal
/// but for their case. Refuses other letters than ASCII's then: Oniguruma folds some of them to
/// several letters.
/// \param from  the code point's offset, for the refusal
std::string literal_of(PatternReader& reader, std::size_t from, char32_t code_point,
                       Case letter_case);

}  // namespace kvhive
