#pragma once
// The "pre_tokenizer" of tokenizer.json: cuts text into the pieces that BPE merges within.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/expected.hpp"
#include "base/json_file.hpp"
#include "models/text/regex.hpp"

namespace kvhive {

/// Whether a text begins the prompt or follows an added token; some spaces are added only there.
enum class Place : std::uint8_t { start, later };

/// Steps applied in order, each to every piece of the one before. Const and thread-safe.
class PreTokenizer {
 public:
  /// \param json  null, one pre-tokenizer or a Sequence: Split, ByteLevel, Digits or Metaspace
  [[nodiscard]] static Expected<PreTokenizer> parse(const nlohmann::json& json,
                                                    const std::string& where);

  /// \param text  valid UTF-8
  [[nodiscard]] Expected<std::vector<std::string>> cut(std::string text, Place place) const;

 private:
  enum class Between : std::uint8_t { kept, dropped };  ///< text between matches
  enum class Matches : std::uint8_t {
    alone,
    behind_the_text
  };  ///< a match ends the text before it
  enum class Prefix : std::uint8_t { always, at_start, never };

  struct Split {
    Regex regex;
    Between between = Between::kept;
    Matches matches = Matches::alone;
  };
  /// The byte-level step's optional leading space; its alphabet needs no step, since BPE works on
  /// bytes here (models/text/byte_alphabet.hpp).
  struct SpaceBefore {};
  struct Metaspace {
    std::string replacement;  ///< of a space
    Prefix prefix = Prefix::always;
    bool split = true;  ///< before every replacement
  };
  using Step = std::variant<Split, SpaceBefore, Metaspace>;
  using Pieces = std::vector<std::string>;

  [[nodiscard]] static Expected<std::size_t> apply(const Split& split, std::string piece, Place,
                                                   Pieces& out);
  [[nodiscard]] static Expected<std::size_t> apply(const SpaceBefore&, std::string piece, Place,
                                                   Pieces& out);
  [[nodiscard]] static Expected<std::size_t> apply(const Metaspace& metaspace,
                                                   const std::string& piece, Place place,
                                                   Pieces& out);
  [[nodiscard]] Expected<std::size_t> add(const nlohmann::json& json, const std::string& where);
  [[nodiscard]] Expected<std::size_t> add_split(const JsonFields& fields);
  [[nodiscard]] Expected<std::size_t> add_byte_level(const JsonFields& fields);
  [[nodiscard]] Expected<std::size_t> add_digits(const JsonFields& fields);
  [[nodiscard]] Expected<std::size_t> add_metaspace(const JsonFields& fields);
  [[nodiscard]] Expected<std::size_t> add_regex(const JsonFields& fields,
                                                const std::string& pattern, Regex::Syntax syntax,
                                                Between between);

  std::vector<Step> steps_;
};

}  // namespace kvhive
