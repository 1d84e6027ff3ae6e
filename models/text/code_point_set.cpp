#include "models/text/code_point_set.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <utility>

#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

struct NamedSet {
  std::string_view name;
  std::string_view items;
  bool is_complement = false;
};

// Unicode's White_Space. PCRE2's own \s has U+180E, too.
constexpr std::string_view kSpace =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr std::string_view kNotHex = R"(\x{0}-/:-@G-`g-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kWordOutsideClass =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

/// Names that \p{} and [::] have in common, as Oniguruma 6.9 defines them; compared with it over
/// all code points of Unicode 14 (tests/models/text/beside_tokenizers.py).
constexpr NamedSet kSharedNames[] = {
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"ascii", R"(\x{0}-\x{7f})"},
    {"blank", R"(\t\p{Zs})"},
    {"cntrl", R"(\p{Cc})"},
    {"digit", R"(\p{Nd})"},
    {"graph", R"(\p{Cc}\p{Cn}\p{Cs}\p{Z})", true},
    {"lower", R"(\p{Lowercase})"},
    {"print", R"(\p{Cc}\p{Cn}\p{Cs}\p{Zl}\p{Zp})", true},
    {"space", kSpace},
    {"upper", R"(\p{Uppercase})"},
    {"xdigit", kHex},
};

constexpr NamedSet kProperties[] = {
    {"any", R"(\x{0}-\x{10ffff})"},
    {"assigned", R"(\p{Cn})", true},
    {"alphabetic", R"(\p{Alphabetic})"},
    {"lowercase", R"(\p{Lowercase})"},
    {"uppercase", R"(\p{Uppercase})"},
    {"whitespace", kSpace},
    {"word", kWordOutsideClass},
    {"punct", R"(\p{P})"},
    {"emoji", R"(\p{Emoji})"},
    {"extendedpictographic", R"(\p{Extended_Pictographic})"},
    {"ideographic", R"(\p{Ideographic})"},
    // General categories.
    {"l", R"(\p{L})"},
    {"letter", R"(\p{L})"},
    {"lc", R"(\p{L&})"},
    {"casedletter", R"(\p{L&})"},
    {"lu", R"(\p{Lu})"},
    {"uppercaseletter", R"(\p{Lu})"},
    {"ll", R"(\p{Ll})"},
    {"lowercaseletter", R"(\p{Ll})"},
    {"lt", R"(\p{Lt})"},
    {"titlecaseletter", R"(\p{Lt})"},
    {"lm", R"(\p{Lm})"},
    {"modifierletter", R"(\p{Lm})"},
    {"lo", R"(\p{Lo})"},
    {"otherletter", R"(\p{Lo})"},
    {"m", R"(\p{M})"},
    {"mark", R"(\p{M})"},
    {"mn", R"(\p{Mn})"},
    {"nonspacingmark", R"(\p{Mn})"},
    {"mc", R"(\p{Mc})"},
    {"spacingmark", R"(\p{Mc})"},
    {"me", R"(\p{Me})"},
    {"enclosingmark", R"(\p{Me})"},
    {"n", R"(\p{N})"},
    {"number", R"(\p{N})"},
    {"nd", R"(\p{Nd})"},
    {"decimalnumber", R"(\p{Nd})"},
    {"nl", R"(\p{Nl})"},
    {"letternumber", R"(\p{Nl})"},
    {"no", R"(\p{No})"},
    {"othernumber", R"(\p{No})"},
    {"p", R"(\p{P})"},
    {"punctuation", R"(\p{P})"},
    {"pc", R"(\p{Pc})"},
    {"connectorpunctuation", R"(\p{Pc})"},
    {"pd", R"(\p{Pd})"},
    {"dashpunctuation", R"(\p{Pd})"},
    {"ps", R"(\p{Ps})"},
    {"openpunctuation", R"(\p{Ps})"},
    {"pe", R"(\p{Pe})"},
    {"closepunctuation", R"(\p{Pe})"},
    {"pi", R"(\p{Pi})"},
    {"initialpunctuation", R"(\p{Pi})"},
    {"pf", R"(\p{Pf})"},
    {"finalpunctuation", R"(\p{Pf})"},
    {"po", R"(\p{Po})"},
    {"otherpunctuation", R"(\p{Po})"},
    {"s", R"(\p{S})"},
    {"symbol", R"(\p{S})"},
    {"sm", R"(\p{Sm})"},
    {"mathsymbol", R"(\p{Sm})"},
    {"sc", R"(\p{Sc})"},
    {"currencysymbol", R"(\p{Sc})"},
    {"sk", R"(\p{Sk})"},
    {"modifiersymbol", R"(\p{Sk})"},
    {"so", R"(\p{So})"},
    {"othersymbol", R"(\p{So})"},
    {"z", R"(\p{Z})"},
    {"separator", R"(\p{Z})"},
    {"zs", R"(\p{Zs})"},
    {"spaceseparator", R"(\p{Zs})"},
    {"zl", R"(\p{Zl})"},
    {"lineseparator", R"(\p{Zl})"},
    {"zp", R"(\p{Zp})"},
    {"paragraphseparator", R"(\p{Zp})"},
    {"c", R"(\p{C})"},
    {"other", R"(\p{C})"},
    {"cc", R"(\p{Cc})"},
    {"control", R"(\p{Cc})"},
    {"cf", R"(\p{Cf})"},
    {"format", R"(\p{Cf})"},
    {"cn", R"(\p{Cn})"},
    {"unassigned", R"(\p{Cn})"},
    {"co", R"(\p{Co})"},
    {"privateuse", R"(\p{Co})"},
    {"cs", R"(\p{Cs})"},
    {"surrogate", R"(\p{Cs})"},
};

std::optional<CodePointSet> find_set(std::span<const NamedSet> sets, std::string_view name) {
  const auto found = std::ranges::find(sets, name, &NamedSet::name);
  if (found == sets.end()) return std::nullopt;
  return CodePointSet{std::string(found->items), found->is_complement};
}

/// Lower case, without spaces, '-' and '_'.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_')
      plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return plain;
}

}  // namespace

CodePointSet property_set(std::string_view name) {
  const auto plain = plain_name(name);
  if (auto set = find_set(kSharedNames, plain)) return *set;
  if (auto set = find_set(kProperties, plain)) return *set;
  // "sc:" because PCRE2's bare \p{Han} means Script_Extensions, Oniguruma's means Script.
  return {R"(\p{sc:)" + plain + '}'};
}

std::optional<CodePointSet> posix_set(std::string_view name) {
  if (name == "punct") return CodePointSet{R"(\p{P}\p{S})"};
  if (name == "word") return CodePointSet{std::string(kWord)};
  return find_set(kSharedNames, name);
}

std::optional<CodePointSet> escape_set(char32_t letter) {
  switch (letter) {
    case 's': return CodePointSet{std::string(kSpace)};
    case 'S': return CodePointSet{std::string(kNotSpace)};
    case 'd': return CodePointSet{R"(\p{Nd})"};
    case 'D': return CodePointSet{R"(\P{Nd})"};
    case 'h': return CodePointSet{std::string(kHex)};
    case 'H': return CodePointSet{std::string(kNotHex)};
    case 'w': return CodePointSet{std::string(kWordOutsideClass)};
    case 'W': return CodePointSet{std::string(kWordOutsideClass), true};
    default: return std::nullopt;
  }
}

CodePointSet part_of_class(CodePointSet set) {
  if (set.items == kWordOutsideClass) set.items = kWord;
  return set;
}

std::string literal(char32_t code_point) {
  const bool is_alphanumeric = (code_point >= '0' && code_point <= '9') ||
                               (code_point >= 'A' && code_point <= 'Z') ||
                               (code_point >= 'a' && code_point <= 'z');
  if (is_alphanumeric || code_point > 0x9F) return utf8_of(code_point);
  if (code_point > ' ' && code_point < 0x7F) return {'\\', static_cast<char>(code_point)};
  std::array<char, 12> text{};
  std::snprintf(text.data(), text.size(), "\\x{%x}", static_cast<unsigned>(code_point));
  return text.data();
}

}  // namespace kvhive
