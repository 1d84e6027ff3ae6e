#pragma once
// Text to tokens and back, as a Hugging Face tokenizer.json says: byte-level BPE (GPT-2, Llama 3,
// Qwen) and SentencePiece-style BPE (Llama 2, Mistral). Unigram and WordPiece are refused.
//
// Where it knowingly differs from huggingface/tokenizers:
//   - bytes that are not UTF-8 are refused in encode(), and decoded to one U+FFFD per maximal
//     subpart, also where byte_fallback would write one per byte;
//   - Metaspace's decoder drops one leading space, not all of the first token's.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "models/text/added_tokens.hpp"
#include "models/text/bpe.hpp"
#include "models/text/normalizer.hpp"
#include "models/text/pre_tokenizer.hpp"

namespace kvhive {

enum class AddSpecial : std::uint8_t { no, yes };  ///< the post-processor's tokens, such as bos

/// Const and thread-safe.
class Tokenizer {
 public:
  /// Added tokens are recognised in the text, special ones too.
  /// \return  an error naming the byte if the text is not UTF-8
  [[nodiscard]] Expected<std::vector<TokenId>> encode(std::string_view text,
                                                      AddSpecial add_special) const;

  /// The bytes a token stands for, which need not be whole characters. Empty for ids without a
  /// token: models pad their vocabulary.
  std::string_view token_bytes(TokenId token) const;
  bool is_special(TokenId token) const;
  /// Whether decoding drops the space that encoding put in front of a text.
  bool strips_leading_space() const { return strip_leading_space_; }

  /// One more than the largest id.
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(token_bytes_.size()); }

 private:
  friend class TokenizerParser;

  [[nodiscard]] Expected<std::size_t> encode_section(std::string_view text, Place place,
                                                     std::vector<TokenId>& out) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  AddedTokenMatcher raw_added_;         ///< matched before the normalizer
  AddedTokenMatcher normalized_added_;  ///< matched behind it
  std::vector<TokenId> prefix_;         ///< of every prompt, with AddSpecial::yes
  std::vector<TokenId> suffix_;
  std::vector<std::string> token_bytes_;  ///< by id
  std::vector<bool> special_;             ///< by id
  bool strip_leading_space_ = false;      ///< see strips_leading_space()
};

}  // namespace kvhive
