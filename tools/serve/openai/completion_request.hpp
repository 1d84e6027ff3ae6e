#pragma once
// The body of POST /v1/completions.

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include "tools/serve/openai/answer_request.hpp"

namespace kvhive {

struct CompletionRequest : AnswerRequest {
  bool echo = false;  ///< the prompt is part of the text
};

[[nodiscard]] tl::expected<CompletionRequest, ApiError> parse_completion(const nlohmann::json& body,
                                                                         const ServedModel& model);

}  // namespace kvhive
