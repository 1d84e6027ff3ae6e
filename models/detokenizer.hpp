#pragma once
// Tokens to text as they are generated.

#include <string>

#include "config/ids.hpp"
#include "models/utf8.hpp"

namespace kvhive {

class Tokenizer;

/// Streams one sequence. Each piece is valid UTF-8; a character whose bytes are spread over tokens
/// appears with its last one. The pieces and finish() concatenate to Tokenizer::decode() of all.
class Detokenizer {
 public:
  /// \param tokenizer  must outlive this
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  std::string push(TokenId token);
  /// What is left when no token will follow: U+FFFD for a character cut short.
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream stream_;
  bool at_start_ = true;
};

}  // namespace kvhive
