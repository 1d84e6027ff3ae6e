#include "tools/serve/chat/chat_request.hpp"

#include <algorithm>
#include <string>

namespace kvhive {
namespace {

using Json = nlohmann::json;

void read_tools(Fields& fields, ChatRequest& request) {
  if (fields.has("tools")) {
    const Json& tools = fields.at("tools");
    const auto is_function = [](const Json& tool) {
      return tool.is_object() && tool.contains("function") && tool["function"].is_object() &&
             tool["function"].contains("name") && tool["function"]["name"].is_string();
    };
    if (!tools.is_array() || !std::all_of(tools.begin(), tools.end(), is_function))
      return fields.fail("tools", "is " + fields.shown("tools") +
                                      "; use a list of {\"type\": \"function\", \"function\": "
                                      "{\"name\": ...}}");
    request.reads_tool_calls = !tools.empty();
  }
  request.one_call_only = !fields.boolean("parallel_tool_calls", true);
  if (!fields.has("tool_choice")) return;
  const Json& choice = fields.at("tool_choice");
  if (choice == "none") {
    request.reads_tool_calls = false;
  } else if (choice == "auto") {
    if (!request.reads_tool_calls)
      fields.fail("tool_choice",
                  "is \"auto\", and there are no tools; give tools, or leave it out");
  } else if (choice == "required" || choice.is_object()) {
    fields.fail("tool_choice", "is " + fields.shown("tool_choice") +
                                   ": kvhive cannot force a call yet; use \"auto\" or \"none\"");
  } else {
    fields.fail("tool_choice", "is " + fields.shown("tool_choice") + "; use \"auto\" or \"none\"");
  }
}

void read_logprobs(Fields& fields, ChatRequest& request) {
  const auto alternatives = static_cast<std::uint32_t>(fields.integer("top_logprobs", 0, 0, 20));
  if (fields.boolean("logprobs", false))
    request.logprobs = alternatives;
  else if (alternatives != 0)
    fields.fail("top_logprobs", "is " + std::to_string(alternatives) +
                                    " and needs \"logprobs\": true; set that, or leave it out");
  request.generate.logprobs = request.logprobs.value_or(0);
}

}  // namespace

void check_messages(Fields& fields) {
  constexpr const char* kRemedy = "; give a list of {\"role\": \"user\", \"content\": ...}";
  if (!fields.has("messages"))
    fields.fail("messages", std::string("is missing") + kRemedy);
  else if (!fields.at("messages").is_array() || fields.at("messages").empty())
    fields.fail("messages", "is " + fields.shown("messages") + kRemedy);
  if (fields.has("chat_template"))
    fields.fail("chat_template",
                "is not taken from requests; the operator gives one with --chat-template");
}

void know_template_fields(Fields& fields) {
  for (const char* name : {"add_generation_prompt", "continue_final_message",
                           "chat_template_kwargs", "documents", "reasoning_effort"})
    fields.know(name);
}

tl::expected<ChatRequest, ApiError> parse_chat(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ChatRequest request;
  read_answer_fields(fields, model, request);
  check_messages(fields);
  const std::string most =
      fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  fields.know("max_tokens");  // beside the newer name it changes nothing
  request.has_max_tokens = fields.has(most);
  request.generate.max_tokens = read_max_tokens(fields, most, model.max_model_len, model);
  read_logprobs(fields, request);
  read_tools(fields, request);
  refuse_what_is_missing(fields, {{"add_special_tokens", false},
                                  {"audio", nullptr},
                                  {"echo", false},
                                  {"functions", Json::array()},
                                  {"modalities", Json::array({"text"})}});
  const auto is_true = [&](const char* name) {
    return fields.has(name) && fields.at(name) == true;
  };
  if (is_true("continue_final_message") && is_true("add_generation_prompt"))
    fields.fail("continue_final_message",
                "is true, and so is add_generation_prompt; a message is continued, or another one "
                "begun: leave one out");
  know_template_fields(fields);
  if (fields.error()) return tl::unexpected(*fields.error());
  request.unknown_fields = fields.unknown();
  return request;
}

}  // namespace kvhive
