#pragma once
// A prompt from the command line: text, a file with text, or token ids.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"

namespace kvhive {

struct Prompt {
  std::string text;             ///< either this
  std::vector<TokenId> tokens;  ///< or these
};

class PromptFlags {
 public:
  /// --prompt-file and --prompt-tokens, and the text itself under the name given.
  void add_to(CLI::App& app, const std::string& text_option);

  /// Errc::bad_argument unless exactly one of them was used, and says something.
  Expected<Prompt> read() const;

 private:
  std::string text_, file_;
  std::vector<TokenId> tokens_;
  const CLI::Option* tokens_option_ = nullptr;
};

}  // namespace kvhive
