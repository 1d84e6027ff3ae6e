// What tokenizer.json puts around the model's tokens: the decoder and the post-processor.

#include <utility>

#include "models/text/tokenizer_parser.hpp"

namespace kvhive {
namespace {

/// Appends the ids of a template's special token ("special_tokens": {"<s>": {"ids": [1]}}).
bool append_special(const nlohmann::json& special_tokens, const nlohmann::json& name,
                    std::int32_t vocab_size, std::vector<TokenId>& out) {
  if (!special_tokens.is_object() || !name.is_string()) return false;
  const auto& token =
      TokenizerParser::field_or_null(special_tokens, name.get<std::string>().c_str());
  const auto& ids = TokenizerParser::field_or_null(token, "ids");
  if (!ids.is_array()) return false;
  for (const auto& id : ids) {
    if (!id.is_number_integer()) return false;
    const auto number = id.get<std::int64_t>();
    if (number < 0 || number >= vocab_size) return false;
    out.push_back(static_cast<TokenId>(number));
  }
  return true;
}

}  // namespace

TokenizerParser::Done TokenizerParser::read_decoder() {
  const auto& decoder = field_or_null(json_, "decoder");
  if (decoder.is_null() && byte_level_) return Done{};
  return read_decoder_step(decoder);
}

TokenizerParser::Done TokenizerParser::read_decoder_step(const nlohmann::json& json) {
  const std::string type = json.is_object() && field_or_null(json, "type").is_string()
                               ? json["type"].get<std::string>()
                               : "";
  const JsonFields step(json, where_ + ": decoder");
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse")
    return Done{};  // tokens are joined as bytes in any case
  if (type == "Replace") return read_replace(json);
  if (type == "Metaspace") return read_metaspace(step);
  if (type == "Strip") {
    const bool one_space = field_or_null(json, "content") == " " &&
                           field_or_null(json, "start") == 1 && field_or_null(json, "stop") == 0;
    if (!one_space)
      return wrong("decoder", json, "a Strip of one leading space", Errc::unsupported);
    tokenizer_.strip_leading_space_ = true;
    return Done{};
  }
  if (type != "Sequence")
    return wrong("decoder", json,
                 "ByteLevel, Metaspace or a Sequence of Replace, ByteFallback, Fuse and Strip",
                 Errc::unsupported);
  const auto steps = step.array("decoders");
  if (!steps) return forward_error(steps);
  for (const auto& part : **steps)
    if (auto done = read_decoder_step(part); !done) return done;
  return Done{};
}

/// A decoder's Replace is spelled as a normalizer's, and done once, on the vocabulary.
TokenizerParser::Done TokenizerParser::read_replace(const nlohmann::json& replace) {
  auto step = Normalizer::parse(replace, where_ + ": decoder");
  if (!step) return forward_error(step);
  for (auto& bytes : tokenizer_.token_bytes_) bytes = step->apply(std::move(bytes));
  return Done{};
}

TokenizerParser::Done TokenizerParser::read_metaspace(const JsonFields& step) {
  const auto replacement = step.text("replacement");
  const auto add_prefix = step.boolean_or("add_prefix_space", true);
  if (!replacement) return forward_error(replacement);
  if (!add_prefix) return forward_error(add_prefix);
  const auto scheme = step.text_or("prepend_scheme", *add_prefix ? "always" : "never");
  if (!scheme) return forward_error(scheme);
  tokenizer_.strip_leading_space_ = *scheme != "never";
  return read_replace(
      {{"type", "Replace"}, {"pattern", {{"String", *replacement}}}, {"content", " "}});
}

TokenizerParser::Done TokenizerParser::read_post_processor() {
  const auto& json = field_or_null(json_, "post_processor");
  return json.is_null() ? Done{} : read_post_step(json);
}

TokenizerParser::Done TokenizerParser::read_post_step(const nlohmann::json& json) {
  if (!json.is_object()) return wrong("post_processor", json, "an object");
  const JsonFields step(json, where_ + ": post_processor");
  const auto type = step.text("type");
  if (!type) return forward_error(type);
  if (*type == "ByteLevel") return Done{};  // moves offsets only
  if (*type == "TemplateProcessing") return read_template(step);
  if (*type != "Sequence")
    return step.wrong("type", "TemplateProcessing, ByteLevel or Sequence", Errc::unsupported);
  const auto parts = step.array("processors");
  if (!parts) return forward_error(parts);
  for (const auto& part : **parts)
    if (auto done = read_post_step(part); !done) return done;
  return Done{};
}

TokenizerParser::Done TokenizerParser::read_template(const JsonFields& step) {
  const auto single = step.array("single");
  const auto special_tokens = step.object("special_tokens");
  if (!single) return forward_error(single);
  if (!special_tokens) return forward_error(special_tokens);
  bool behind_text = false;
  for (const auto& part : **single) {
    const bool is_text = part.is_object() && part.contains("Sequence");
    const auto& name = field_or_null(field_or_null(part, "SpecialToken"), "id");
    auto& target = behind_text ? tokenizer_.suffix_ : tokenizer_.prefix_;
    if (is_text)
      behind_text = true;
    else if (!append_special(special_tokens->json(), name, tokenizer_.vocab_size(), target))
      return wrong("post_processor: single", part, "a Sequence or a SpecialToken with known ids");
  }
  return Done{};
}

}  // namespace kvhive
