#include "models/text/character_class.hpp"

#include <charconv>
#include <vector>

namespace kvhive {
namespace {

constexpr int kDeepestClass = 50;
constexpr char32_t kLargestAscii = 0x7F;
constexpr char32_t kLargestCodePoint = 0x10FFFF;

bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// The items of a class that match an ASCII character whatever its case. 's' and 'k' have a third
/// form: U+017F and U+212A.
std::string caseless_items(char32_t c) {
  if (!is_ascii_letter(c)) return literal(c);
  const char32_t lower = c | 0x20;
  std::string items{static_cast<char>(lower), static_cast<char>(lower - 0x20)};
  if (lower == 's') items += R"(\x{17f})";
  if (lower == 'k') items += R"(\x{212a})";
  return items;
}

/// What stands between two "&&" of a class: a union.
struct Union {
  std::string items;                ///< of one PCRE2 class
  std::vector<std::string> others;  ///< patterns of one code point each, which no class can hold

  void add(const CodePointSet& set) {
    if (set.is_complement)
      others.push_back(set.pattern());
    else
      items += set.items;
  }
  bool is_empty() const { return items.empty() && others.empty(); }
  std::string pattern() const {
    if (others.empty()) return '[' + items + ']';
    std::string text = "(?:";
    if (!items.empty()) text += '[' + items + "]|";
    for (std::size_t i = 0; i < others.size(); ++i) text += (i == 0 ? "" : "|") + others[i];
    return text + ')';
  }
};

/// Reads one class. A class within it is read by another reader.
class ClassReader {
 public:
  ClassReader(PatternReader& reader, Case letter_case, int depth)
      : reader_(reader), case_(letter_case), depth_(depth) {}

  std::string read() {
    const std::size_t begin = reader_.offset() - 1;
    if (depth_ > kDeepestClass) {
      reader_.refuse(begin, "classes are nested too deep");
      return {};
    }
    const bool is_negated = reader_.take("^");
    if (reader_.is_next("]")) add_member();  // a ']' that comes first is a member
    while (!reader_.is_refused() && !reader_.take("]")) {
      if (reader_.at_end())
        reader_.refuse(begin, "the class has no end");
      else if (reader_.take("&&"))
        unions_.emplace_back();
      else
        add_part();
    }
    return pattern(begin, is_negated);
  }

 private:
  Union& current() { return unions_.back(); }

  std::string pattern(std::size_t begin, bool is_negated) {
    for (const Union& one : unions_)
      if (one.is_empty()) reader_.refuse(begin, "an empty class, or nothing on one side of &&");
    if (unions_.size() == 1 && current().others.empty())
      return CodePointSet{current().items, is_negated}.pattern();
    std::string all;
    for (std::size_t i = 0; i + 1 < unions_.size(); ++i) all += "(?=" + unions_[i].pattern() + ')';
    all += current().pattern();
    return is_negated ? "(?:(?!" + all + R"()[\x{0}-\x{10ffff}]))" : "(?:" + all + ')';
  }

  void add_part() {
    const std::size_t from = reader_.offset();
    if (reader_.take("[:"))
      add_posix(from);
    else if (reader_.take("["))
      add_nested(from);
    else if (!add_set_escape())
      add_member();
  }

  void add_posix(std::size_t from) {
    const bool is_negated = reader_.take("^");
    const auto name = reader_.take_until(":]");
    const auto set = posix_set(name);
    if (!set) return reader_.refuse(from, "an unknown POSIX class");
    refuse_ignored_case(from);
    current().add(is_negated ? set->complement() : *set);
    refuse_range_after_set();
  }

  void add_nested(std::size_t from) {
    refuse_ignored_case(from);
    current().others.push_back(ClassReader(reader_, case_, depth_ + 1).read());
    refuse_range_after_set();
  }

  /// \s, \p{L} and so on.
  bool add_set_escape() {
    const std::size_t from = reader_.offset();
    if (!reader_.take("\\")) return false;
    const char32_t letter = reader_.take();
    auto set = escape_set(letter);
    if (letter == 'p' || letter == 'P') set = read_property(reader_, letter);
    if (!set) {
      reader_.go_back_to(from);
      return false;
    }
    if (letter != 's' && letter != 'd') refuse_ignored_case(from);
    current().add(part_of_class(*set));
    refuse_range_after_set();
    return true;
  }

  /// Oniguruma adds to such a class what has the same letters in another case, for sets by rules of
  /// its own.
  void refuse_ignored_case(std::size_t from) {
    if (case_ == Case::ignored)
      reader_.refuse(from, "a set inside a class under (?i); kvhive takes ASCII characters there");
  }

  /// A '-' behind a set is itself at the end of the class only.
  void refuse_range_after_set() {
    const std::size_t from = reader_.offset();
    if (reader_.is_next("-") && !reader_.is_next("-]"))
      reader_.refuse(from, "a range that begins with a set; write the '-' last");
  }

  /// One code point of a class, escaped or not.
  char32_t read_member() {
    const std::size_t from = reader_.offset();
    if (!reader_.take("\\")) return reader_.take();
    const char32_t letter = reader_.take();
    if (letter == 'b') return '\b';
    if (const auto code_point = read_code_point_escape(reader_, letter)) return *code_point;
    reader_.refuse(from, "an escape that kvhive does not know in a class");
    return 0;
  }

  void add_member() {
    const std::size_t from = reader_.offset();
    const char32_t first = read_member();
    char32_t last = first;
    const bool is_range = reader_.is_next("-") && !reader_.is_next("-]") && !reader_.is_next("-&&");
    if (is_range) {
      reader_.take("-");
      if (reader_.is_next("[")) return reader_.refuse(from, "a range that ends with a set");
      last = read_member();
      if (last < first) return reader_.refuse(from, "a range whose end is before its begin");
      if (reader_.is_next("-") && !reader_.is_next("-]"))
        return reader_.refuse(from, "a '-' behind a range; write it last");
    }
    add_range(from, first, last);
  }

  void add_range(std::size_t from, char32_t first, char32_t last) {
    if (case_ == Case::exact) {
      current().items += literal(first);
      if (last > first) current().items += '-' + literal(last);
      return;
    }
    if (last > kLargestAscii)
      return reader_.refuse(from, "(?i) over other characters than ASCII's");
    for (char32_t c = first; c <= last; ++c) current().items += caseless_items(c);
  }

  PatternReader& reader_;
  Case case_;
  int depth_;
  std::vector<Union> unions_ = std::vector<Union>(1);
};

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

/// Hexadecimal digits as a code point; refuses what is none.
char32_t code_point_of(PatternReader& reader, std::size_t from, std::string_view digits) {
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  const bool is_surrogate = value >= 0xD800 && value < 0xE000;
  if (!is_number || value > kLargestCodePoint || is_surrogate)
    reader.refuse(from, "not a code point");
  return value;
}

char32_t read_hex_escape(PatternReader& reader, char32_t letter) {
  const std::size_t from = reader.offset() - 2;
  if (letter == 'x' && reader.take("{")) return code_point_of(reader, from, reader.take_until("}"));
  const auto digits = reader.take_any_of(kHexDigits, letter == 'x' ? 2 : 4);
  const char32_t value = code_point_of(reader, from, digits);
  if (letter == 'u' && digits.size() < 4) reader.refuse(from, R"(expected \u and four digits)");
  if (letter == 'x' && value > kLargestAscii)
    reader.refuse(from, "a byte of a character; write the code point as \\x{...}");
  return value;
}

}  // namespace

std::string read_class(PatternReader& reader, Case letter_case) {
  return ClassReader(reader, letter_case, 0).read();
}

CodePointSet read_property(PatternReader& reader, char32_t letter) {
  const std::size_t from = reader.offset() - 2;
  if (!reader.take("{")) {
    reader.refuse(from, "expected {name} behind it");
    return {};
  }
  const bool is_negated = reader.take("^") != (letter == 'P');
  const auto name = reader.take_until("}");
  for (const char c : name) {
    const bool is_known =
        is_ascii_letter(static_cast<unsigned char>(c)) || c == ' ' || c == '_' || c == '-';
    if (!is_known) reader.refuse(from, "not a property's name");
  }
  const auto set = property_set(name);
  return is_negated ? set.complement() : set;
}

std::optional<char32_t> read_code_point_escape(PatternReader& reader, char32_t letter) {
  switch (letter) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'v': return '\v';
    case 'f': return '\f';
    case 'r': return '\r';
    case 'a': return '\a';
    case 'e': return 0x1B;
    case 'x':
    case 'u': return read_hex_escape(reader, letter);
    default: break;
  }
  const bool is_digit = letter >= '0' && letter <= '9';
  if (is_ascii_letter(letter) || is_digit || letter > kLargestAscii) return std::nullopt;
  return letter;
}

std::string literal_of(PatternReader& reader, std::size_t from, char32_t code_point,
                       Case letter_case) {
  if (letter_case == Case::exact) return literal(code_point);
  if (code_point > kLargestAscii) {
    reader.refuse(from, "(?i) over other characters than ASCII's");
    return {};
  }
  return is_ascii_letter(code_point) ? '[' + caseless_items(code_point) + ']' : literal(code_point);
}

}  // namespace kvhive
