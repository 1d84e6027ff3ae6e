#pragma once
// A POST /v1/completions under way.

#include "models/text/detokenizer.hpp"
#include "tools/serve/openai/completion_request.hpp"
#include "tools/serve/openai/generation.hpp"

namespace kvhive {

class Completion : public Generation {
 public:
  Completion(AnswerContext context, CompletionRequest request);

 private:
  std::string_view prompt_field() const override { return prompt_field_; }
  std::string_view kind() const override { return "text_completion"; }
  bool repeats_prompt() const override { return echo_ || Generation::repeats_prompt(); }
  Json write(std::size_t index, const std::string& text,
             const std::vector<OutputToken>& tokens) override;
  static Json prompt_ids_of(const AnswerRequest::Prompt& prompt);
  Json logprobs_of(std::size_t index, const std::vector<OutputToken>& tokens);
  template <class Token>
  Json top_of(const Token& token, std::size_t most) const;
  void add_prompt(std::size_t index, Json& logprobs) const;

  const bool echo_;
  const std::string_view prompt_field_;
  /// Where an answer's next token is in its text, in characters.
  struct Place {
    std::size_t offset = 0;
    Detokenizer text;
  };
  std::vector<Place> places_;  ///< of each answer, for logprobs
};

}  // namespace kvhive
