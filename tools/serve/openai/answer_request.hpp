#pragma once
// What a request for completions and one for chat have in common. Fields, defaults and limits are
// vLLM's, names and meaning OpenAI's. A field that kvhive does not know changes nothing, as in
// vLLM; one that it knows and cannot do is refused unless it has the value that changes nothing.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/serve/openai/beam_search.hpp"
#include "tools/serve/openai/fields.hpp"
#include "tools/serve/openai/served_model.hpp"
#include "tools/serve/tensor/prompt_rows.hpp"

namespace kvhive {

/// The most log-probabilities of prompts that one request may ask for: some 5 MB of text.
inline constexpr std::size_t kMostScores = std::size_t{1} << 16;
/// Each answer has a list of its own in a channel, where others' requests need room, too.
inline constexpr std::size_t kMostAllowedInAll = std::size_t{1} << 18;
/// The most answers that one request may ask for.
inline constexpr std::size_t kMostAnswers = 256;

struct AnswerRequest {
  struct Prompt {
    std::string text;
    std::vector<TokenId> tokens;  ///< instead of text
    std::vector<TokenId> told{};  ///< of a text, if somebody wants them (wants_tokens())
    std::shared_ptr<const PromptRows> rows{};  ///< instead of text and tokens
  };
  std::vector<Prompt> prompts;
  std::string model;                         ///< the model's name, or an adapter's
  std::uint32_t n = 1;                       ///< answers to each prompt
  std::uint32_t best_of = 1;                 ///< that are generated to each, n of which are told
  std::optional<BeamSearch::Rules> beams{};  ///< n of them are the answers; max_tokens is not set
  std::optional<std::uint32_t> logprobs;     ///< so many alternatives to each token
  /// The answer says how likely the prompt's tokens are, with so many alternatives to each. (An
  /// answer that repeats the prompt may say so, too: then generate.prompt_logprobs alone is set.)
  std::optional<std::uint32_t> prompt_logprobs{};
  bool repeats_only = false;  ///< the prompt is wanted, and nothing behind it
  bool stream = false;
  bool include_usage = false;     ///< streamed: a last event tells it
  bool continuous_usage = false;  ///< streamed: each event tells it
  bool return_token_ids = false;
  bool token_ids_as_text = false;  ///< in logprobs: "token_id:7"
  Fields::Unknown unknown_fields;
  /// Of each request to an engine, but for its prompt and seed.
  GenerateRequest generate;

  /// Whether prompts that are texts are needed as tokens, too.
  bool wants_tokens() const { return return_token_ids || generate.prompt_logprobs || beams; }
  /// Why no engine is asked: a prompt is longer than any may be, or so much is to be told of
  /// prompts that it would take the service's memory. Known when texts are tokens. An error of the
  /// prompt itself names no field.
  std::optional<ApiError> refusal(const ServedModel& served) const;
  /// The request to an engine for one prompt's i-th answer.
  GenerateRequest for_answer(std::size_t prompt, std::uint32_t i) const;
};

/// What the field `model` names: the model, or one of its adapters.
std::string read_model(Fields& fields, const ServedModel& model);
/// Its own, then its adapters'.
std::vector<std::string> names_of(const ServedModel& model);
/// \param known  names that do exist here
ApiError no_such_model(const std::string& asked, const std::vector<std::string>& known);

/// Reads all but prompts, logprobs and the most tokens.
void read_answer_fields(Fields& fields, const ServedModel& model, AnswerRequest& request);

/// The most tokens that a request asks for in the named field, at least `least`.
std::uint32_t read_max_tokens(Fields& fields, const std::string& name, std::uint32_t fallback,
                              const ServedModel& model, std::uint32_t least = 1);

/// Refuses fields that would change the answer and are not there yet. Each comes with the value
/// that changes nothing.
void refuse_what_is_missing(Fields& fields,
                            const std::vector<std::pair<std::string, nlohmann::json>>& missing);

}  // namespace kvhive
