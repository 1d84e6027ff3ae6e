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
  struct Stop {
    std::vector<std::string> texts{};
    bool is_kept = false;  ///< the text ends behind the stop string, and not before it
    /// A stop string that ends in the text of so many first tokens does not count.
    std::size_t min_tokens = 0;
  };
  /// \param tokenizer  may be null: then there is no text, and stop strings never match
  OutputText(const Tokenizer* tokenizer, Stop stop);

  struct Piece {
    std::string text;      ///< new text that cannot be part of a stop string
    bool stopped = false;  ///< true = the text contains a stop string, and was cut there
  };
  Piece push(TokenId token);

  /// Generation has ended for another reason than a stop string: returns the text that was held
  /// back.
  std::string finish();

  std::size_t bytes() const { return bytes_; }  ///< bytes of text returned so far

 private:
  struct Match {
    std::size_t begin, end;
  };
  std::optional<Match> find_stop() const;
  Piece release(bool is_end);

  Stop stop_;
  std::size_t longest_stop_ = 0;
  std::optional<Detokenizer> detokenizer_;
  std::size_t tokens_ = 0;
  std::string held_;
  std::size_t unsearched_ = 0;  ///< of held_, so many bytes are of the first min_tokens
  std::size_t bytes_ = 0;
};

}  // namespace kvhive
