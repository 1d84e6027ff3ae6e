#pragma once
// A prompt from the command line: text, a file with text (or standard input), or token ids.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"

namespace kvhive {

struct GivenPrompt {
  std::string text;             ///< empty if the prompt is given as token ids
  std::vector<TokenId> tokens;  ///< empty if the prompt is given as text
};

/// Ids as a flag has them, "12,7,400". Errors name the flag and the text.
[[nodiscard]] Expected<std::vector<TokenId>> parse_token_ids(const std::string& flag,
                                                             const std::string& text);

class PromptFlags {
 public:
  /// Adds --prompt-file and --prompt-tokens, and the text itself under the name given.
  void add_to(CLI::App& app, const std::string& text_option);

  /// Errors: none or several of them are given, the text is empty, the file cannot be read.
  [[nodiscard]] Expected<GivenPrompt> read() const;

 private:
  std::string text_, file_, tokens_;
  const CLI::Option* tokens_option_ = nullptr;
};

}  // namespace kvhive
