#include "models/text/tokenizer.hpp"

#include <utility>

#include "models/text/utf8.hpp"

namespace kvhive {

Expected<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                                 AddSpecial add_special) const {
  if (const auto invalid = first_invalid_utf8(text))
    return failure(Errc::bad_argument, "text is not UTF-8 at byte " + std::to_string(*invalid) +
                                           " of " + std::to_string(text.size()) + "; re-encode it");
  std::vector<TokenId> tokens;
  if (add_special == AddSpecial::yes) tokens = prefix_;
  for (const auto& section : raw_added_.cut(text)) {
    if (section.token) {
      tokens.push_back(section.token->id);
      continue;
    }
    const bool at_start = section.text.data() == text.data();
    auto done = encode_section(section.text, at_start ? Place::start : Place::later, tokens);
    if (!done) return forward_error(done);
  }
  if (add_special == AddSpecial::yes) tokens.insert(tokens.end(), suffix_.begin(), suffix_.end());
  return tokens;
}

Expected<std::size_t> Tokenizer::encode_section(std::string_view text, Place place,
                                                std::vector<TokenId>& out) const {
  const std::string normalized = normalizer_.apply(std::string(text));
  for (const auto& section : normalized_added_.cut(normalized)) {
    if (section.token) {
      out.push_back(section.token->id);
      continue;
    }
    const bool at_start = place == Place::start && section.text.data() == normalized.data();
    const auto pieces =
        pre_tokenizer_.cut(std::string(section.text), at_start ? Place::start : Place::later);
    if (!pieces) return forward_error(pieces);
    for (const auto& piece : *pieces) bpe_.encode(piece, out);
  }
  return out.size();
}

std::string_view Tokenizer::token_bytes(TokenId token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return token_bytes_[token];
}

bool Tokenizer::is_special(TokenId token) const {
  return token >= 0 && token < vocab_size() && special_[token];
}

}  // namespace kvhive
