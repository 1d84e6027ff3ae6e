#include "tools/cli/prompt.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

namespace kvhive {
namespace {

Expected<std::string> read_stream(std::istream& stream, const std::string& name) {
  std::ostringstream text;
  if (stream.peek() != std::istream::traits_type::eof()) text << stream.rdbuf();
  if (stream.bad() || text.fail())
    return failure(Errc::os_error, "--prompt-file '" + name + "' could not be read to its end");
  return text.str();
}

/// \param path  "-" = standard input
Expected<std::string> read_text(const std::string& path) {
  if (path == "-") return read_stream(std::cin, path);
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
    return failure(Errc::bad_argument, "--prompt-file '" + path +
                                           "' is a directory; give a text file, or - for "
                                           "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return failure(Errc::not_found, "--prompt-file '" + path +
                                        "' cannot be read; give a text file, or - for "
                                        "standard input");
  return read_stream(file, path);
}

}  // namespace

Expected<std::vector<TokenId>> parse_token_ids(const std::string& flag, const std::string& text) {
  std::vector<TokenId> ids;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at <= end; ++at) {
    TokenId id = -1;
    const auto [behind, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0 || (behind != end && *behind != ','))
      return failure(Errc::bad_argument,
                     flag + " '" + text +
                         "' is not a list of token ids; give numbers from 0 on, "
                         "separated by commas, as in 12,7,400");
    ids.push_back(id);
    at = behind;
  }
  return ids;
}

void PromptFlags::add_to(CLI::App& app, const std::string& text_option) {
  app.add_option(text_option, text_, "the prompt's text");
  app.add_option("--prompt-file", file_, "a file with the prompt's text; - is standard input")
      ->type_name("FILE");
  tokens_option_ = app.add_option("--prompt-tokens", tokens_, "the prompt as token ids")
                       ->type_name("ID,ID,...")
                       ->default_str("");
}

Expected<GivenPrompt> PromptFlags::read() const {
  const bool has_tokens = tokens_option_->count() > 0;
  if (!file_.empty() + has_tokens + !text_.empty() > 1)
    return failure(Errc::bad_argument, "give one of --prompt, --prompt-file and --prompt-tokens");
  GivenPrompt prompt{text_, {}};
  if (has_tokens) {
    auto tokens = parse_token_ids("--prompt-tokens", tokens_);
    if (!tokens) return forward_error(tokens);
    prompt.tokens = std::move(*tokens);
  }
  if (!file_.empty()) {
    auto text = read_text(file_);
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
