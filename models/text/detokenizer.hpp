#pragma once
// Tokens to text as they are generated.

#include <cstdint>
#include <span>
#include <string>

#include "base/ids.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {

class Tokenizer;

/// What becomes of special tokens, such as the one that begins a text.
enum class SpecialTokens : std::uint8_t { left_out, kept };

/// Streams one sequence. Each piece is valid UTF-8; a character whose bytes are spread over tokens
/// appears with its last one. The pieces and finish() concatenate to decode() of all tokens.
class Detokenizer {
 public:
  /// \param tokenizer  must outlive this
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::left_out)
      : tokenizer_(&tokenizer), special_(special) {}

  std::string push(TokenId token);
  /// What is left when no token will follow: U+FFFD for a character cut short.
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  Utf8Stream stream_;
  bool at_start_ = true;
};

/// The text of tokens. Always valid UTF-8.
std::string decode(const Tokenizer& tokenizer, std::span<const TokenId> tokens,
                   SpecialTokens special = SpecialTokens::left_out);

}  // namespace kvhive
