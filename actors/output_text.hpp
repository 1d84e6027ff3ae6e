#pragma once
// Turns tokens into text as they are generated, and searches the text for stop strings.

#include <optional>
#include <string>
#include <vector>

#include "models/text/detokenizer.hpp"
#include "models/text/tokenizer.hpp"

namespace kvhive {

/// The text of one request. Text that could still become a stop string is held back, so that text
/// that was returned never has to be taken back.
class OutputText {
 public:
  /// \param tokenizer  may be null: then there is no text, and stop strings never match
  OutputText(const Tokenizer* tokenizer, std::vector<std::string> stop);

  struct Piece {
    std::string text;      ///< new text that is certain
    bool stopped = false;  ///< a stop string is complete; the text ends before it
  };
  Piece push(TokenId token);

  /// The text that was held back, when generation ends for another reason.
  std::string finish();

  std::size_t bytes() const { return bytes_; }  ///< returned so far

 private:
  Piece release(bool is_end);

  std::vector<std::string> stop_;
  std::size_t longest_stop_ = 0;
  std::optional<Detokenizer> detokenizer_;
  std::string held_;
  std::size_t bytes_ = 0;
};

}  // namespace kvhive
