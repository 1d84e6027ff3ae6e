#include "tools/serve/chat/chat_template.hpp"

#include <utility>

#include "base/json_file.hpp"

namespace kvhive {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{4} << 20;

Expected<void> read_into(ChatTemplate& chat, const std::string& use, const fs::path& path) {
  auto text = read_text_file(path, kMostBytes);
  if (!text) return forward_error(text);
  chat.by_use[use] = std::move(*text);
  return {};
}

/// "chat_template" is a text, or a list of {"name", "template"}.
bool take_templates(ChatTemplate& chat, const Json& value) {
  if (value.is_string()) {
    chat.by_use["default"] = value.get<std::string>();
    return true;
  }
  if (!value.is_array()) return false;
  for (const Json& entry : value) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) return false;
    const Json &name = entry["name"], &text = entry["template"];
    if (!name.is_string() || !text.is_string()) return false;
    chat.by_use[name.get<std::string>()] = text.get<std::string>();
  }
  return true;
}

Expected<void> take_config(ChatTemplate& chat, const fs::path& path) {
  const auto config = read_json_object(path);
  if (!config) return forward_error(config);
  for (const auto& [name, value] : config->items())
    if (name.ends_with("_token") || name == "additional_special_tokens")
      chat.special_tokens[name] = value;
  const auto found = config->find("chat_template");
  if (found == config->end() || found->is_null() || !chat.by_use.empty()) return {};
  if (!take_templates(chat, *found))
    return failure(Errc::bad_format, path.string() +
                                         ": chat_template is neither a text nor a list of "
                                         "templates with names; mend it, or give --chat-template");
  return {};
}

Expected<void> take_files(ChatTemplate& chat, const fs::path& model) {
  const fs::path single = model / "chat_template.jinja";
  if (!fs::exists(single)) return {};
  if (auto read = read_into(chat, "default", single); !read) return read;
  const fs::path further = model / "additional_chat_templates";
  if (!fs::is_directory(further)) return {};
  for (const auto& entry : fs::directory_iterator(further))
    if (entry.path().extension() == ".jinja")
      if (auto read = read_into(chat, entry.path().stem().string(), entry.path()); !read)
        return read;
  return {};
}

}  // namespace

ToolFormat ChatTemplate::tool_format() const {
  for (const auto& [use, text] : by_use) {
    if (text.find("<tool_call>") != std::string::npos) return ToolFormat::hermes;
    if (text.find("[TOOL_CALLS]") != std::string::npos) return ToolFormat::mistral;
    if (text.find("<|python_tag|>") != std::string::npos) return ToolFormat::llama3_json;
  }
  return ToolFormat::none;
}

Expected<std::optional<ChatTemplate>> find_chat_template(const fs::path& model,
                                                         const fs::path& file) {
  ChatTemplate chat;
  chat.special_tokens = Json::object();
  auto read = file.empty() ? take_files(chat, model) : read_into(chat, "default", file);
  if (!read) return forward_error(read);
  const fs::path config = model / "tokenizer_config.json";
  if (fs::exists(config))
    if (auto taken = take_config(chat, config); !taken) return forward_error(taken);
  if (chat.by_use.empty()) return std::optional<ChatTemplate>();
  if (!chat.by_use.contains("default"))
    return failure(Errc::bad_format, config.string() +
                                         ": chat_template has no template named 'default'; mend "
                                         "it, or give --chat-template");
  return std::optional<ChatTemplate>(std::move(chat));
}

}  // namespace kvhive
