#pragma once
// Sets of code points as PCRE2 writes them, and the sets that Oniguruma's names stand for.

#include <optional>
#include <string>
#include <string_view>

namespace kvhive {

/// What stands between the brackets of a PCRE2 class, or the complement of that.
struct CodePointSet {
  std::string items;  ///< "\p{L}\p{Nd}_"
  bool is_complement = false;

  CodePointSet complement() const { return {items, !is_complement}; }
  /// A pattern that matches one code point of the set.
  std::string pattern() const { return (is_complement ? "[^" : "[") + items + "]"; }
};

/// The set of \p{name}. Case, spaces, '-' and '_' in the name do not count. A name that is not in
/// the table is taken for a script: PCRE2 refuses it if there is none.
CodePointSet property_set(std::string_view name);

/// The set of [:name:], which differs from \p{name} for "punct". Nothing if the name is unknown.
std::optional<CodePointSet> posix_set(std::string_view name);

/// The set of \s, \d, \h and \w, and for 'S', 'D', 'H' and 'W' its complement. Nothing for other
/// letters.
std::optional<CodePointSet> escape_set(char32_t letter);

/// The set as a part of a class: there, \w and \p{Word} lack six Latin-1 digits and fractions that
/// Oniguruma counts as word characters elsewhere.
CodePointSet part_of_class(CodePointSet set);

/// One code point as PCRE2 writes it, inside and outside of a class.
std::string literal(char32_t code_point);

}  // namespace kvhive
