#include "models/text/detokenizer.hpp"

#include "models/text/tokenizer.hpp"

namespace kvhive {

std::string Detokenizer::push(TokenId token) {
  if (tokenizer_->is_special(token) && special_ == SpecialTokens::left_out) return {};
  auto bytes = tokenizer_->token_bytes(token);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_->strips_leading_space() && bytes.front() == ' ')
    bytes.remove_prefix(1);
  at_start_ = false;
  return stream_.push(bytes);
}

std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> tokens,
                   SpecialTokens special) {
  Detokenizer detokenizer(tokenizer, special);
  std::string text;
  for (const TokenId token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

}  // namespace kvhive
