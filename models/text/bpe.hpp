#pragma once
// Byte-pair encoding: a piece of text is cut into its smallest symbols, then the adjacent pair of
// lowest rank is merged, again and again, the leftmost of equal pairs first.
//
// Source: Sennrich et al. (2016); huggingface/tokenizers, models/bpe/word.rs. A heap of candidate
// pairs over a linked list of symbols makes it O(n log n) for a piece of n bytes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"

namespace kvhive {

/// Lets maps of strings be asked with a string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using Vocabulary = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

/// Two adjacent tokens, as a key.
constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

struct Merge {
  std::uint32_t rank = 0;  ///< lower goes first
  TokenId merged = 0;
};

/// Const and thread-safe once filled.
struct Bpe {
  /// Smallest symbols: bytes, or the code points of SentencePiece.
  enum class Symbols : std::uint8_t { bytes, code_points };

  Vocabulary vocabulary;                            ///< keyed by the bytes a token stands for
  std::unordered_map<std::uint64_t, Merge> merges;  ///< by pair_key
  Symbols symbols = Symbols::bytes;
  /// [256], for bytes and for code points without a token; or empty
  std::vector<TokenId> byte_tokens;
  std::optional<TokenId> unknown;  ///< for code points without a token where byte_tokens is empty
  bool fuse_unknown = false;       ///< a run of unknown code points is one token
  bool ignore_merges = false;  ///< a piece that is a token is that token, whatever the merges say

  /// Appends the tokens of one piece, valid UTF-8 unless symbols are bytes.
  void encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  std::vector<TokenId> smallest_symbols(std::string_view piece) const;
};

}  // namespace kvhive
