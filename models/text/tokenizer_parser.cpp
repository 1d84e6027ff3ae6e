#include "models/text/tokenizer_parser.hpp"

#include <utility>

#include "models/text/byte_alphabet.hpp"

namespace kvhive {
namespace {

constexpr TokenId kLargestId = 1 << 24;

/// SentencePiece's spelling of a byte without a token of its own: "<0x0A>".
std::string fallback_spelling(unsigned byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + '>';
}

/// Whether a pre_tokenizer, alone or in a Sequence, is of this type.
bool has_step(const nlohmann::json& json, const std::string& list, const std::string& type) {
  if (!json.is_object()) return false;
  if (TokenizerParser::field_or_null(json, "type") == type) return true;
  const auto& parts = TokenizerParser::field_or_null(json, list.c_str());
  if (!parts.is_array()) return false;
  for (const auto& part : parts)
    if (has_step(part, list, type)) return true;
  return false;
}

}  // namespace

const nlohmann::json& TokenizerParser::field_or_null(const nlohmann::json& object,
                                                     const char* name) {
  static const nlohmann::json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

tl::unexpected<Error> TokenizerParser::wrong(const std::string& field, const nlohmann::json& value,
                                             const std::string& wanted, Errc code) const {
  return failure(code, where_ + ": " + field + " = " + shown(value) + ", expected " + wanted);
}

Expected<Tokenizer> TokenizerParser::parse() {
  auto normalizer = Normalizer::parse(field_or_null(json_, "normalizer"), where_ + ": normalizer");
  if (!normalizer) return forward_error(normalizer);
  tokenizer_.normalizer_ = std::move(*normalizer);
  const auto& pre_tokenizer = field_or_null(json_, "pre_tokenizer");
  auto parsed = PreTokenizer::parse(pre_tokenizer, where_ + ": pre_tokenizer");
  if (!parsed) return forward_error(parsed);
  tokenizer_.pre_tokenizer_ = std::move(*parsed);
  byte_level_ = has_step(pre_tokenizer, "pretokenizers", "ByteLevel") ||
                has_step(field_or_null(json_, "decoder"), "decoders", "ByteLevel");

  for (const auto step : {&TokenizerParser::read_model, &TokenizerParser::read_added_tokens,
                          &TokenizerParser::read_decoder, &TokenizerParser::read_bytes,
                          &TokenizerParser::read_post_processor})
    if (auto done = (this->*step)(); !done) return forward_error(done);
  return std::move(tokenizer_);
}

TokenizerParser::Done TokenizerParser::read_model() {
  const JsonFields fields(json_, where_);
  const auto model = fields.object("model");
  if (!model) return forward_error(model);
  const auto type = model->text_or("type", "BPE");
  if (!type) return forward_error(type);
  if (*type != "BPE") return model->wrong("type", "BPE", Errc::unsupported);
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model->text_or(name, "");
    if (!affix || !affix->empty()) return model->wrong(name, "null", Errc::unsupported);
  }
  if (model->has("dropout") && !model->number("dropout", 0, 0))
    return model->wrong("dropout", "null: merges must not be random", Errc::unsupported);

  const auto byte_fallback = model->boolean_or("byte_fallback", false);
  const auto ignore_merges = model->boolean_or("ignore_merges", false);
  const auto fuse_unknown = model->boolean_or("fuse_unk", false);
  if (!byte_fallback) return forward_error(byte_fallback);
  if (!ignore_merges) return forward_error(ignore_merges);
  if (!fuse_unknown) return forward_error(fuse_unknown);
  byte_fallback_ = *byte_fallback;
  tokenizer_.bpe_.ignore_merges = *ignore_merges;
  tokenizer_.bpe_.fuse_unknown = *fuse_unknown;
  tokenizer_.bpe_.symbols = byte_level_ ? Bpe::Symbols::bytes : Bpe::Symbols::code_points;

  for (const auto step : {&TokenizerParser::read_vocabulary, &TokenizerParser::read_merges,
                          &TokenizerParser::read_unknown})
    if (auto done = (this->*step)(*model); !done) return done;
  return Done{};
}

/// What BPE sees of a vocabulary entry: bytes for byte-level, else the spelling itself, whose
/// U+2581 the normalizer or Metaspace puts into the text.
std::string TokenizerParser::bytes_of(const std::string& spelling) const {
  if (!byte_level_) return spelling;
  return bytes_of_spelling(spelling).value_or(spelling);
}

void TokenizerParser::set_token(TokenId id, std::string bytes) {
  auto& all = tokenizer_.token_bytes_;
  if (all.size() <= std::size_t(id)) {
    all.resize(id + 1);
    tokenizer_.special_.resize(id + 1);
  }
  all[id] = std::move(bytes);
}

TokenizerParser::Done TokenizerParser::read_vocabulary(const JsonFields& model) {
  const auto object = model.object("vocab");
  if (!object) return forward_error(object);
  const auto& vocab = object->json();
  auto& bpe = tokenizer_.bpe_;
  bpe.vocabulary.reserve(vocab.size());
  for (const auto& [spelling, value] : vocab.items()) {
    const auto id = object->integer(spelling, 0, kLargestId);
    if (!id) return forward_error(id);
    const auto token = static_cast<TokenId>(*id);
    if (!tokenizer_.token_bytes(token).empty())
      return wrong("model: vocab: " + shown(spelling), value, "an id that no other token has");
    set_token(token, bytes_of(spelling));
    bpe.vocabulary.emplace(bytes_of(spelling), token);
  }
  return Done{};
}

Expected<Merge> TokenizerParser::read_merge(const nlohmann::json& json, std::uint64_t& key) const {
  std::string left;
  std::string right;
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    left = json[0].get<std::string>();
    right = json[1].get<std::string>();
  } else if (json.is_string()) {
    const auto text = json.get<std::string>();
    const auto space = text.find(' ');
    if (space != std::string::npos) {
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
  }
  if (left.empty() || right.empty())
    return wrong("model: merges", json, R"(pairs, as "a b" or ["a", "b"])");
  const auto& vocabulary = tokenizer_.bpe_.vocabulary;
  const auto left_id = vocabulary.find(bytes_of(left));
  const auto right_id = vocabulary.find(bytes_of(right));
  const auto merged = vocabulary.find(bytes_of(left) + bytes_of(right));
  for (const auto& found : {left_id, right_id, merged})
    if (found == vocabulary.end())
      return wrong("model: merges", json, "both parts and their concatenation in the vocabulary");
  key = pair_key(left_id->second, right_id->second);
  return Merge{0, merged->second};
}

TokenizerParser::Done TokenizerParser::read_merges(const JsonFields& model) {
  const auto list = model.array("merges");
  if (!list) return forward_error(list);
  auto& merges = tokenizer_.bpe_.merges;
  merges.reserve((*list)->size());
  for (std::uint32_t rank = 0; rank < (*list)->size(); ++rank) {
    std::uint64_t key = 0;
    auto merge = read_merge((**list)[rank], key);
    if (!merge) return forward_error(merge);
    merge->rank = rank;
    merges.insert_or_assign(key,
                            *merge);  // a pair listed twice has its last rank, as in the source
  }
  return Done{};
}

TokenizerParser::Done TokenizerParser::read_unknown(const JsonFields& model) {
  const auto spelling = model.text_or("unk_token", "");
  if (!spelling) return forward_error(spelling);
  if (spelling->empty()) return Done{};
  const auto found = tokenizer_.bpe_.vocabulary.find(*spelling);
  if (found == tokenizer_.bpe_.vocabulary.end())
    return model.wrong("unk_token", "a token of the vocabulary");
  tokenizer_.bpe_.unknown = found->second;
  return Done{};
}

/// Every text must be encodable: all bytes have tokens, or there is an unknown token.
TokenizerParser::Done TokenizerParser::read_bytes() {
  auto& bpe = tokenizer_.bpe_;
  std::vector<TokenId> tokens;
  for (unsigned byte = 0; byte < 256 && (byte_level_ || byte_fallback_); ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const auto found = bpe.vocabulary.find(byte_level_ ? bytes : fallback_spelling(byte));
    if (found == bpe.vocabulary.end()) continue;
    tokenizer_.token_bytes_[found->second] = bytes;
    tokens.push_back(found->second);
  }
  if (tokens.size() == 256)
    bpe.byte_tokens = std::move(tokens);
  else if (byte_level_ || !bpe.unknown)
    return failure(Errc::unsupported,
                   where_ + ": model: vocab has tokens for " + std::to_string(tokens.size()) +
                       " of 256 bytes" + (byte_level_ ? "" : " and there is no unk_token") +
                       ", so that some texts could not be encoded; use a complete tokenizer");
  return Done{};
}

TokenizerParser::Done TokenizerParser::read_added_token(const nlohmann::json& json,
                                                        std::vector<AddedToken>& raw,
                                                        std::vector<AddedToken>& normalized) {
  if (!json.is_object()) return wrong("added_tokens", json, "a list of objects");
  const JsonFields fields(json, where_ + ": added_tokens");
  const auto id = fields.integer("id", 0, kLargestId);
  auto content = fields.text("content");
  if (!id) return forward_error(id);
  if (!content) return forward_error(content);
  AddedToken token{static_cast<TokenId>(*id), std::move(*content)};
  bool single_word = false;
  const std::pair<const char*, bool*> flags[] = {{"special", &token.special},
                                                 {"normalized", &token.normalized},
                                                 {"lstrip", &token.lstrip},
                                                 {"rstrip", &token.rstrip},
                                                 {"single_word", &single_word}};
  for (const auto& [name, flag] : flags) {
    const auto value = fields.boolean_or(name, false);
    if (!value) return forward_error(value);
    *flag = *value;
  }
  if (single_word) return fields.wrong("single_word", "false", Errc::unsupported);

  set_token(token.id, token.content);
  tokenizer_.special_[token.id] = token.special;
  if (token.normalized) token.content = tokenizer_.normalizer_.apply(std::move(token.content));
  (token.normalized ? normalized : raw).push_back(std::move(token));
  return Done{};
}

TokenizerParser::Done TokenizerParser::read_added_tokens() {
  const auto& list = field_or_null(json_, "added_tokens");
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (const auto& json : list)
    if (auto done = read_added_token(json, raw, normalized); !done) return done;
  tokenizer_.raw_added_ = AddedTokenMatcher(std::move(raw));
  tokenizer_.normalized_added_ = AddedTokenMatcher(std::move(normalized));
  return Done{};
}

Expected<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  const auto path = directory / "tokenizer.json";
  const auto json = read_json_object(path);
  if (!json) return forward_error(json);
  return parse_tokenizer(*json, path.string());
}

Expected<Tokenizer> parse_tokenizer(const nlohmann::json& json, const std::string& where) {
  return TokenizerParser(json, where).parse();
}

}  // namespace kvhive
