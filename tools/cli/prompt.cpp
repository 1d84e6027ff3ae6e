#include "tools/cli/prompt.hpp"

#include <fstream>
#include <sstream>

namespace kvhive {
namespace {

Expected<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return failure(Errc::not_found,
                   "--prompt-file '" + path + "' cannot be read; give a text file");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void PromptFlags::add_to(CLI::App& app, const std::string& text_option) {
  app.add_option(text_option, text_, "the prompt's text");
  app.add_option("--prompt-file", file_, "a file with the prompt's text");
  tokens_option_ =
      app.add_option("--prompt-tokens", tokens_, "the prompt as token ids: 1,2,3")->delimiter(',');
}

Expected<Prompt> PromptFlags::read() const {
  const bool has_tokens = tokens_option_->count() > 0;
  if (!file_.empty() + has_tokens + !text_.empty() > 1)
    return failure(Errc::bad_argument, "give one of --prompt, --prompt-file and --prompt-tokens");
  Prompt prompt{text_, tokens_};
  if (!file_.empty()) {
    auto text = read_file(file_);
    if (!text) return forward_error(text);
    prompt.text = std::move(*text);
  }
  if (prompt.text.empty() && prompt.tokens.empty())
    return failure(Errc::bad_argument,
                   "the prompt is empty; give text with --prompt, a file with --prompt-file or ids "
                   "with --prompt-tokens");
  return prompt;
}

}  // namespace kvhive
