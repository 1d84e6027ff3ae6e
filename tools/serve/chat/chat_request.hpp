#pragma once
// The body of POST /v1/chat/completions, but for what the template reads of it: its messages, tools
// and documents stay text, byte for byte, until they are rendered.

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include "tools/serve/openai/answer_request.hpp"

namespace kvhive {

struct ChatRequest : AnswerRequest {
  bool has_max_tokens = false;    ///< else as many as the model can take
  bool reads_tool_calls = false;  ///< there are tools, and the model may call them
  bool one_call_only = false;
};

/// Its prompt is not known yet.
[[nodiscard]] tl::expected<ChatRequest, ApiError> parse_chat(const nlohmann::json& body,
                                                             const ServedModel& model);

/// Refuses a request whose messages cannot be rendered, and templates of callers: they are
/// programs.
void check_messages(Fields& fields);

/// Fields that only the process that renders templates reads.
void know_template_fields(Fields& fields);

}  // namespace kvhive
