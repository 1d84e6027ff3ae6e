#pragma once
// Turns tokens into text as they are generated, and searches the text for stop strings.

#include <optional>
#include <string>
#include <vector>

#include "models/text/detokenizer.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

/// The text of one request. The last bytes, which could still turn out to be the beginning of a
/// stop string, are held back, so that returned text never has to be withdrawn.
class OutputText {
 public:
  /// \param tokenizer  may be null: then there is no text, and stop strings never match
  OutputText(const Tokenizer* tokenizer, std::vector<std::string> stop);

  struct Piece {
    std::string text;      ///< new text that cannot be part of a stop string
    bool stopped = false;  ///< true = the text contains a stop string, and was cut before it
  };
  Piece push(TokenId token);

  /// Generation has ended for another reason than a stop string: returns the text that was held
  /// back.
  std::string finish();

  std::size_t bytes() const { return bytes_; }  ///< bytes of text returned so far

 private:
  Piece release(bool is_end);

  std::vector<std::string> stop_;
  std::size_t longest_stop_ = 0;
  std::optional<Detokenizer> detokenizer_;
  std::string held_;
  std::size_t bytes_ = 0;
};

}  // namespace kvhive
