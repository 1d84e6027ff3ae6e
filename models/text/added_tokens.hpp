#pragma once
// Tokens matched in the text itself before anything else is done to it: <s>, <|im_start|>, ...
//
// Source: huggingface/tokenizers, tokenizer/added_vocabulary.rs.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.hpp"

namespace kvhive {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;     ///< left out of decoded text
  bool normalized = false;  ///< matched in normalized text instead of raw text
  bool lstrip = false;      ///< swallows the white space before it
  bool rstrip = false;      ///< swallows the white space behind it
};

/// Finds the leftmost, of several the longest, added token. Const and thread-safe.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// A stretch of text; `token` is null for what lies between added tokens.
  struct Section {
    std::string_view text;
    const AddedToken* token = nullptr;
  };

  /// Sections cover the text in order, without the white space that tokens swallow; none is empty.
  std::vector<Section> cut(std::string_view text) const;

 private:
  const AddedToken* match_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  ///< by first byte, then longest first
  /// tokens_ that begin with byte b: first_[b]..first_[b+1].
  std::vector<std::size_t> first_ = std::vector<std::size_t>(257);
};

}  // namespace kvhive
