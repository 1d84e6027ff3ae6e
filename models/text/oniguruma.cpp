#include "models/text/oniguruma.hpp"

#include <charconv>
#include <optional>
#include <utility>

#include "models/text/character_class.hpp"
#include "models/text/pattern_reader.hpp"

namespace kvhive {
namespace {

constexpr int kDeepestGroup = 100;
constexpr unsigned kLargestCount = 65535;  // PCRE2's
constexpr std::size_t kLongestNumber = 8;  // digits; a ninth makes the brace no interval

/// What (?i) and (?m) switch.
struct Options {
  Case letter_case = Case::exact;
  bool dot_matches_newline = false;
};

/// A piece of the pattern that a quantifier may follow.
struct Atom {
  enum class Kind {
    consumes,   ///< a character, a set, a group
    assertion,  ///< matches at a place; Oniguruma refuses to repeat it
  };
  std::string text;
  Kind kind = Kind::consumes;
  /// Under (?i): the literals that the text begins and ends with, in lower case; else 0.
  char32_t first_letter = 0, last_letter = 0;
  /// Only an atom with a lazy quantifier, perhaps in groups: Oniguruma rewrites (?:a*?)+ by a table
  /// of its own, not always to what PCRE2 would do.
  bool is_lazy_repeat = false;
  bool is_repeat = false;
};

/// The text between "(" and ")", or the whole pattern.
struct Body {
  std::string text;
  Atom only;                                   ///< the single atom, if count is 1
  std::size_t count = 0;                       ///< atoms and '|'
  char32_t first_letter = 0, last_letter = 0;  ///< as an atom's; 0 if there is a '|'
};

struct Quantifier {
  std::string text;
  bool is_interval = false;
  bool is_lazy = false;
  unsigned least = 0;  ///< of an interval
};

class Translator {
 public:
  explicit Translator(const std::string& pattern) : reader_(pattern) {}

  Expected<std::string> translate() {
    auto body = read_body({}, 0);
    if (!reader_.is_refused() && !reader_.at_end()) {
      const std::size_t from = reader_.offset();
      reader_.take();
      reader_.refuse(from, "a ')' without its '('");
    }
    if (reader_.is_refused()) return reader_.error();
    return std::move(body.text);
  }

 private:
  /// Reads up to, not with, the ')' or the end.
  Body read_body(Options options, int depth) {
    Body body;
    char32_t letter_before = 0;
    bool has_choice = false;
    while (!reader_.at_end() && !reader_.is_next(")")) {
      ++body.count;
      if (reader_.take("|")) {
        body.text += '|';
        letter_before = 0;
        has_choice = true;
        continue;
      }
      const std::size_t from = reader_.offset();
      body.only = read_atom(options, depth);
      refuse_folding_pair(from, letter_before, body.only.first_letter);
      read_quantifiers(body.only, from);
      letter_before = body.only.last_letter;
      if (body.count == 1) body.first_letter = body.only.first_letter;
      body.last_letter = body.only.last_letter;
      body.text += body.only.text;
    }
    if (has_choice) body.first_letter = body.last_letter = 0;
    return body;
  }

  /// Under (?i) Oniguruma matches these pairs with one character, too: U+00DF, U+FB00 to U+FB06.
  void refuse_folding_pair(std::size_t from, char32_t first, char32_t second) {
    const std::u32string_view pairs[] = {U"ss", U"ff", U"fi", U"fl", U"st"};
    for (const auto pair : pairs)
      if (first == pair[0] && second == pair[1])
        reader_.refuse(from - 1, "letters under (?i) that are one character in some writings");
  }

  Atom read_atom(Options options, int depth) {
    const std::size_t from = reader_.offset();
    const char32_t c = reader_.take();
    switch (c) {
      case '\\': return read_escape(from, options);
      case '[': return {read_class(reader_, options.letter_case)};
      case '(': return read_group(from, options, depth);
      case '.': return {options.dot_matches_newline ? R"([\x{0}-\x{10ffff}])" : R"([^\n])"};
      case '^': return {R"((?:\A|(?<=\n)(?!\z)))", Atom::Kind::assertion};
      case '$': return {R"((?=\n|\z))", Atom::Kind::assertion};
      case '*':
      case '+':
      case '?': reader_.refuse(from, "a quantifier with nothing before it"); return {};
      case '{': return brace(from);
      default: return literal_atom(from, c, options);
    }
  }

  /// A '{' where an atom was expected: a character, unless it begins an interval.
  Atom brace(std::size_t from) {
    reader_.go_back_to(from);
    if (read_interval())
      reader_.refuse(from, "a quantifier with nothing before it");
    else
      reader_.take();
    return {literal('{')};
  }

  Atom literal_atom(std::size_t from, char32_t c, Options options) {
    const bool is_ignored = options.letter_case == Case::ignored;
    Atom atom{literal_of(reader_, from, c, options.letter_case)};
    if (is_ignored) atom.first_letter = atom.last_letter = c | 0x20;
    return atom;
  }

  Atom read_escape(std::size_t from, Options options) {
    const char32_t letter = reader_.take();
    if (auto set = escape_set(letter)) return {set->pattern()};
    const auto assertion = [](std::string text) {
      return Atom{std::move(text), Atom::Kind::assertion};
    };
    switch (letter) {
      case 'p':
      case 'P': return {read_property(reader_, letter).pattern()};
      case 'N': return {R"([^\n])"};
      case 'O': return {R"([\x{0}-\x{10ffff}])"};
      case 'R': return {R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))"};
      case 'A': return assertion(R"(\A)");
      case 'z': return assertion(R"(\z)");
      case 'Z': return assertion(R"((?=\n?\z))");
      case 'G': return assertion(R"(\G)");
      case 'b':
      case 'B': return assertion(word_border(letter == 'b'));
      default: break;
    }
    if (const auto c = read_code_point_escape(reader_, letter))
      return literal_atom(from, *c, options);
    reader_.refuse(from, "kvhive does not know this escape");
    return {};
  }

  static std::string word_border(bool is_border) {
    const std::string word = escape_set('w')->pattern();
    const std::string behind = is_border ? "(?!" : "(?=";
    const std::string ahead = is_border ? "(?=" : "(?!";
    return "(?:(?<=" + word + ")" + behind + word + ")|(?<!" + word + ")" + ahead + word + "))";
  }

  Atom read_group(std::size_t from, Options options, int depth) {
    if (depth > kDeepestGroup) {
      reader_.refuse(from, "groups are nested too deep");
      return {};
    }
    if (reader_.is_next("*")) {
      reader_.refuse(from, "callouts are not supported");
      return {};
    }
    if (!reader_.take("?")) return close_group(from, "(?:", options, depth);
    for (const char* plain : {":", ">"})
      if (reader_.take(plain)) return close_group(from, std::string("(?") + plain, options, depth);
    for (const char* look : {"=", "!", "<=", "<!"})
      if (reader_.take(look)) {
        Atom atom = close_group(from, std::string("(?") + look, options, depth);
        return {std::move(atom.text), Atom::Kind::assertion};
      }
    if (reader_.take("<")) return read_named_group(from, ">", options, depth);
    if (reader_.take("'")) return read_named_group(from, "'", options, depth);
    return read_options_group(from, options, depth);
  }

  Atom close_group(std::size_t from, const std::string& opening, Options options, int depth) {
    Body body = read_body(options, depth + 1);
    if (!reader_.take(")")) reader_.refuse(from, "the group has no end");
    Atom atom{opening + body.text + ')'};
    atom.first_letter = body.first_letter;
    atom.last_letter = body.last_letter;
    atom.is_repeat = body.count == 1 && body.only.is_repeat;
    atom.is_lazy_repeat = atom.is_repeat && body.only.is_lazy_repeat;
    return atom;
  }

  /// Nothing can refer to the name: references are refused.
  Atom read_named_group(std::size_t from, const char* end, Options options, int depth) {
    const auto name = reader_.take_until(end);
    if (name.empty() || name.find_first_of("<>'()|") != std::string_view::npos)
      reader_.refuse(from, "a group's name was expected");
    return close_group(from, "(?:", options, depth);
  }

  /// (?im-im:...), or (?im-im), which counts up to the next ')', over every '|' on the way.
  Atom read_options_group(std::size_t from, Options options, int depth) {
    bool value = true;
    while (!reader_.is_next(":") && !reader_.is_next(")")) {
      const char32_t letter = reader_.take();
      if (letter == '-' && value)
        value = false;
      else if (letter == 'i')
        options.letter_case = value ? Case::ignored : Case::exact;
      else if (letter == 'm')
        options.dot_matches_newline = value;
      else {
        reader_.refuse(from, "kvhive does not know this kind of group");
        return {};
      }
    }
    if (reader_.take(":")) return close_group(from, "(?:", options, depth);
    reader_.take(")");
    const Body rest = read_body(options, depth + 1);
    return {"(?:" + rest.text + ')', Atom::Kind::assertion};  // a quantifier cannot follow
  }

  /// "{n}", "{n,}", "{,m}" or "{n,m}". Nothing, and nothing read, if the brace is a character.
  std::optional<Quantifier> read_interval() {
    const std::size_t from = reader_.offset();
    if (!reader_.take("{")) return std::nullopt;
    const auto least = read_number();
    const bool has_comma = reader_.take(",");
    const auto most = has_comma ? read_number() : least;
    if ((!least && !most) || !reader_.take("}")) {
      reader_.go_back_to(from);
      return std::nullopt;
    }
    if (least.value_or(0) > kLargestCount || most.value_or(0) > kLargestCount)
      reader_.refuse(from, "a count above 65535");
    if (least && most && *least > *most)
      reader_.refuse(from, "an interval whose end is before its begin");
    Quantifier read{'{' + std::to_string(least.value_or(0)), true, false, least.value_or(0)};
    if (has_comma) read.text += ',' + (most ? std::to_string(*most) : "");
    read.text += '}';
    // "{n}?" is not lazy: the '?' repeats once more.
    if (has_comma && reader_.take("?")) read.is_lazy = true;
    return read;
  }

  std::optional<unsigned> read_number() {
    const auto digits = reader_.take_any_of("0123456789", kLongestNumber);
    unsigned value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      return std::nullopt;
    return value;
  }

  std::optional<Quantifier> read_quantifier() {
    for (const char* sign : {"*", "+", "?"}) {
      if (!reader_.take(sign)) continue;
      if (reader_.take("?")) return Quantifier{sign, false, true};
      // Possessive. Behind an interval a '+' repeats once more.
      return Quantifier{sign + std::string(reader_.take("+") ? "+" : ""), false, false};
    }
    return read_interval();
  }

  void read_quantifiers(Atom& atom, std::size_t from) {
    std::optional<Quantifier> before;
    std::string once = atom.text;
    while (const auto quantifier = read_quantifier()) {
      if (atom.kind == Atom::Kind::assertion)
        return reader_.refuse(from, "a quantifier behind something without width");
      if (before && !before->is_interval)
        return reader_.refuse(from, "a quantifier behind a quantifier");
      if (atom.is_repeat && (atom.is_lazy_repeat || quantifier->is_lazy))
        return reader_.refuse(from, "a lazy quantifier inside or around another quantifier");
      const std::string repeated =
          before ? repeat(once, *before, atom.text, *quantifier) : atom.text + quantifier->text;
      once = std::exchange(atom.text, repeated + (quantifier->is_lazy ? "?" : ""));
      atom.first_letter = atom.last_letter = 0;
      atom.is_repeat = true;
      atom.is_lazy_repeat = quantifier->is_lazy;
      before = quantifier;
    }
  }

  /// `once` was repeated by `inner` to `text` and is repeated again. "x{1,3}+" is "x+", and said so
  /// because PCRE2 would try every way to cut a run into one, two and three.
  static std::string repeat(const std::string& once, const Quantifier& inner,
                            const std::string& text, const Quantifier& outer) {
    const bool is_endless = outer.text == "+" || outer.text == "*";
    if (!is_endless || inner.least > 1) return "(?:" + text + ')' + outer.text;
    return once + (inner.least == 0 ? "*" : outer.text);
  }

  PatternReader reader_;
};

}  // namespace

Expected<std::string> oniguruma_to_pcre2(const std::string& pattern) {
  if (const auto invalid = first_invalid_utf8(pattern))
    return failure(Errc::bad_format,
                   "regular expression is not UTF-8 at byte " + std::to_string(*invalid));
  return Translator(pattern).translate();
}

}  // namespace kvhive
