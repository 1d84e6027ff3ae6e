#pragma once
// Reads tokenizer.json. A field that the parser does not know is an error that names it: a
// tokenizer that is nearly right gives wrong tokens, which no test of a user would notice.

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "models/text/tokenizer.hpp"

namespace kvhive {

/// \param directory  holds tokenizer.json
[[nodiscard]] Expected<Tokenizer> load_tokenizer(const std::filesystem::path& directory);
/// \param where  what error texts call the file
[[nodiscard]] Expected<Tokenizer> parse_tokenizer(const nlohmann::json& json,
                                                  const std::string& where);

class TokenizerParser {
 public:
  /// Both must outlive this.
  TokenizerParser(const nlohmann::json& json, const std::string& where)
      : json_(json), where_(where) {}

  [[nodiscard]] Expected<Tokenizer> parse();

  /// A field, or null where there is none.
  static const nlohmann::json& field_or_null(const nlohmann::json& object, const char* name);

 private:
  using Done = Expected<std::monostate>;

  [[nodiscard]] Done read_model();
  [[nodiscard]] Done read_vocabulary(const JsonFields& model);
  [[nodiscard]] Done read_merges(const JsonFields& model);
  [[nodiscard]] Done read_unknown(const JsonFields& model);
  [[nodiscard]] Done read_added_tokens();
  [[nodiscard]] Done read_added_token(const nlohmann::json& json, std::vector<AddedToken>& raw,
                                      std::vector<AddedToken>& normalized);
  [[nodiscard]] Done read_decoder();
  [[nodiscard]] Done read_decoder_step(const nlohmann::json& json);
  [[nodiscard]] Done read_replace(const nlohmann::json& replace);
  [[nodiscard]] Done read_metaspace(const JsonFields& step);
  [[nodiscard]] Done read_post_processor();
  [[nodiscard]] Done read_post_step(const nlohmann::json& json);
  [[nodiscard]] Done read_template(const JsonFields& step);
  [[nodiscard]] Done read_bytes();

  [[nodiscard]] Expected<Merge> read_merge(const nlohmann::json& json, std::uint64_t& key) const;
  void set_token(TokenId id, std::string bytes);
  std::string bytes_of(const std::string& spelling) const;
  tl::unexpected<Error> wrong(const std::string& field, const nlohmann::json& value,
                              const std::string& wanted, Errc code = Errc::bad_format) const;

  const nlohmann::json& json_;
  const std::string& where_;
  Tokenizer tokenizer_;
  bool byte_level_ = false;  ///< the vocabulary is spelled in GPT-2's alphabet
  bool byte_fallback_ = false;
};

}  // namespace kvhive
