#pragma once
// A model's chat template: Jinja2, as Hugging Face stores it.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/expected.hpp"

namespace kvhive {

/// What a model writes to call a tool.
enum class ToolFormat : std::uint8_t {
  none,         ///< nothing is taken for a call
  hermes,       ///< <tool_call>{"name": ..., "arguments": ...}</tool_call> (Qwen 2.5 and 3, Hermes)
  llama3_json,  ///< the whole answer is {"name": ..., "parameters": ...} (Llama 3)
  mistral,      ///< [TOOL_CALLS][{"name": ..., "arguments": ...}], or [TOOL_CALLS]name{...}
};

struct ChatTemplate {
  std::map<std::string, std::string> by_use;  ///< "default", and "tool_use" where there is one
  nlohmann::json special_tokens;              ///< of tokenizer_config.json: "bos_token" and so on

  /// What the template itself shows of a call.
  ToolFormat tool_format() const;
};

/// Looks where transformers does: chat_template.jinja and additional_chat_templates/, then
/// tokenizer_config.json. Nothing = the model has none.
/// \param file  instead of the model's; empty = the model's
[[nodiscard]] Expected<std::optional<ChatTemplate>> find_chat_template(
    const std::filesystem::path& model, const std::filesystem::path& file);

}  // namespace kvhive
