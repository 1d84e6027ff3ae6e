#include "models/detokenizer.hpp"

#include "models/tokenizer.hpp"

namespace kvhive {

std::string Detokenizer::push(TokenId token) {
  if (tokenizer_->is_special(token)) return {};
  auto bytes = tokenizer_->token_bytes(token);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_->strip_leading_space_ && bytes.front() == ' ') bytes.remove_prefix(1);
  at_start_ = false;
  return stream_.push(bytes);
}

}  // namespace kvhive
