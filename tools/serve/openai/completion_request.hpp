#pragma once
// The body of POST /v1/completions.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tl/expected.hpp>

#include "tools/serve/openai/answer_request.hpp"

namespace kvhive {

/// Whether prompts may be given as embeddings, whose bodies are large.
enum class PromptEmbeds : std::uint8_t { refused, taken };

struct CompletionRequest : AnswerRequest {
  bool echo = false;  ///< the prompt is part of the text
  /// The field with the prompts: "prompt", or "prompt_embeds".
  std::string_view prompt_field = "prompt";
};

/// Takes as long as the body has bytes: prompts that are embeddings are decoded, too.
[[nodiscard]] tl::expected<CompletionRequest, ApiError> parse_completion(const nlohmann::json& body,
                                                                         const ServedModel& model,
                                                                         PromptEmbeds embeds);

}  // namespace kvhive
