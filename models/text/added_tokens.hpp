#pragma once
// Tokens matched in the text itself before anything else is done to it: <s>, <|im_start|>, ...
//
// Source: huggingface/tokenizers, tokenizer/added_vocabulary.rs.

#include <array>
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

/// Finds the leftmost added token; of several that begin there, the longest. Takes time linear in
/// the text, whatever the tokens. Const and thread-safe.
///
/// It is an Aho-Corasick automaton of the reversed tokens that reads the text backwards: so it
/// learns for each place of the text the longest token that begins there.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() : AddedTokenMatcher(std::vector<AddedToken>()) {}
  /// Of two tokens with the same content the first counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// A stretch of text; `token` is null for what lies between added tokens.
  struct Section {
    std::string_view text;
    const AddedToken* token = nullptr;
  };

  /// Sections cover the text in order, without the white space that tokens swallow; none is empty.
  std::vector<Section> cut(std::string_view text) const;

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  struct Edge {
    unsigned char byte = 0;
    Index to = kNone;
  };
  /// The ends of some tokens: those that end with the bytes on the way from the root.
  struct Node {
    std::vector<Edge> edges;
    Index fallback = 0;     ///< the node of the longest shorter way that ends like this one's
    Index longest = kNone;  ///< in tokens_: the longest token that this node's way begins with
  };
  struct Match {
    std::size_t begin = 0;
    Index token = 0;
  };

  void add(Index token);
  void link();
  Index child(Index node, unsigned char byte) const;
  Index step(Index node, unsigned char byte) const;
  std::vector<Match> tokens_by_begin(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;           ///< the root is the first
  std::array<Index, 256> from_root_;  ///< step() from the root
};

}  // namespace kvhive
