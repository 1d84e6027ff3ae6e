#pragma once
// The "normalizer" of tokenizer.json: what happens to text before it is cut.

#include <string>
#include <variant>
#include <vector>

#include "base/expected.hpp"
#include "base/json_file.hpp"

namespace kvhive {

/// Steps applied in order. Const and thread-safe.
class Normalizer {
 public:
  /// \param json  null, one normalizer or a Sequence: NFC, NFD, NFKC, NFKD, Prepend, or Replace of
  ///              a literal string
  [[nodiscard]] static Expected<Normalizer> parse(const nlohmann::json& json,
                                                  const std::string& where);

  /// \param text  valid UTF-8
  std::string apply(std::string text) const;

 private:
  struct UnicodeForm {
    int options = 0;  ///< of utf8proc_map
  };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    std::string from;
    std::string to;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  static std::string apply_step(const UnicodeForm& form, std::string text);
  static std::string apply_step(const Prepend& prepend, const std::string& text);
  static std::string apply_step(const Replace& replace, const std::string& text);
  [[nodiscard]] Expected<std::size_t> add(const nlohmann::json& json, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace kvhive
