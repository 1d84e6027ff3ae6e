#include "tools/serve/chat/tool_call_reader.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace kvhive {
namespace {

using OrderedJson = nlohmann::ordered_json;  // arguments keep the order they were written in

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

bool is_space(std::string_view text) {
  return text.find_first_not_of(kSpace) == std::string_view::npos;
}

std::string_view without_space_before(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text;
}

/// Where `wanted` begins in the text, or may begin with its last bytes; the text's size = nowhere.
std::size_t place_of(std::string_view text, std::string_view wanted) {
  for (std::size_t at = 0; at < text.size(); ++at)
    if (wanted.starts_with(text.substr(at, wanted.size()))) return at;
  return text.size();
}

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::optional<ToolCall> call_of(const OrderedJson& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  ToolCall call{json["name"].get<std::string>(), "{}"};
  for (const char* const name : {"arguments", "parameters"}) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) continue;
    call.arguments = found->is_string() ? found->get<std::string>() : text_of(*found);
    break;
  }
  return call;
}

OrderedJson parse(std::string_view text) { return OrderedJson::parse(text, nullptr, false); }

/// The text up to the end of the JSON object or list that it begins with; empty = it is not whole.
std::string_view first_value(std::string_view text) {
  std::size_t depth = 0;
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (is_quoted) {
      if (letter == '\\') ++i;
      if (letter == '"') is_quoted = false;
      continue;
    }
    if (letter == '"') is_quoted = true;
    if (letter == '{' || letter == '[') ++depth;
    if ((letter == '}' || letter == ']') && --depth == 0) return text.substr(0, i + 1);
  }
  return {};
}

using Calls = std::optional<std::vector<ToolCall>>;  ///< nothing = it is none

/// {...}; {...}
Calls llama_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  text = without_space_before(text);
  if (const std::string_view marker = marker_of(ToolFormat::llama3_json); text.starts_with(marker))
    text.remove_prefix(marker.size());
  for (text = without_space_before(text); !text.empty(); text = without_space_before(text)) {
    if (text.front() != '{') return std::nullopt;
    const std::string_view value = first_value(text);
    auto call = call_of(parse(value));
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
    text = without_space_before(text.substr(value.size()));
    if (text.starts_with(';')) text.remove_prefix(1);
  }
  return calls;
}

/// What stands behind one [TOOL_CALLS].
Calls mistral_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  text = without_space_before(text);
  if (text.starts_with('[')) {
    const OrderedJson list = parse(text);
    if (!list.is_array()) return std::nullopt;
    for (const OrderedJson& entry : list) {
      auto call = call_of(entry);
      if (!call) return std::nullopt;
      calls.push_back(std::move(*call));
    }
    return calls;
  }
  const std::size_t brace = text.find('{');
  if (brace == std::string_view::npos) return std::nullopt;
  std::string_view name = text.substr(0, brace);
  name = name.substr(0, name.find('['));  // [CALL_ID]..., [ARGS]
  const OrderedJson arguments = parse(text.substr(brace));
  if (is_space(name) || !arguments.is_object()) return std::nullopt;
  name = name.substr(0, name.find_last_not_of(kSpace) + 1);
  calls.push_back({std::string(name), text_of(arguments)});
  return calls;
}

}  // namespace

std::string_view marker_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::mistral: return "[TOOL_CALLS]";
    case ToolFormat::llama3_json: return "<|python_tag|>";
    default: return {};
  }
}

ToolCallReader::Found ToolCallReader::push(std::string_view text) {
  held_ += text;
  if (format_ == ToolFormat::hermes) return read_hermes(false);
  if (format_ == ToolFormat::llama3_json && !is_plain_) {
    const std::string_view begun = without_space_before(held_);
    const std::string_view marker = marker_of(format_);
    is_plain_ = !begun.empty() && begun.front() != '{' &&
                !marker.starts_with(begun.substr(0, marker.size()));
    if (!is_plain_) return {};
  }
  // Up to a marker, all is text. Nothing follows the calls.
  const std::string_view marker = format_ == ToolFormat::mistral ? marker_of(format_) : "";
  const std::size_t free = marker.empty() ? held_.size() : place_of(held_, marker);
  Found found{held_.substr(0, free), {}};
  held_.erase(0, free);
  return found;
}

ToolCallReader::Found ToolCallReader::finish() {
  return format_ == ToolFormat::hermes ? read_hermes(true) : read_rest();
}

ToolCallReader::Found ToolCallReader::read_hermes(bool is_end) {
  Found found;
  const auto show = [&](std::string_view text) {
    if (!has_calls_ || !is_space(text)) found.text += text;  // line ends between calls are no text
  };
  for (;;) {
    const std::size_t open = place_of(held_, kOpen);
    show(std::string_view(held_).substr(0, open));
    held_.erase(0, open);
    const bool is_open = held_.starts_with(kOpen);
    const std::size_t close = is_open ? held_.find(kClose) : std::string::npos;
    if (close == std::string::npos && !is_end) return found;
    if (held_.empty()) return found;
    const std::size_t end = std::min(close, held_.size());
    const std::size_t whole = std::min(end + kClose.size(), held_.size());
    auto call =
        is_open ? call_of(parse(std::string_view(held_).substr(kOpen.size(), end - kOpen.size())))
                : std::nullopt;
    if (call) {
      found.calls.push_back(std::move(*call));
      has_calls_ = true;
    } else {
      found.text += held_.substr(0, whole);
    }
    held_.erase(0, whole);
  }
}

ToolCallReader::Found ToolCallReader::read_rest() {
  Found found;
  Calls calls;
  if (format_ == ToolFormat::llama3_json && !held_.empty()) calls = llama_calls(held_);
  if (format_ == ToolFormat::mistral && held_.starts_with(marker_of(format_))) {
    calls.emplace();
    std::string_view rest = held_;
    while (calls && !rest.empty()) {
      rest.remove_prefix(marker_of(format_).size());
      const std::size_t next = rest.find(marker_of(format_));
      auto some = mistral_calls(rest.substr(0, next));
      if (some) calls->insert(calls->end(), some->begin(), some->end());
      if (!some) calls.reset();
      rest.remove_prefix(std::min(next, rest.size()));
    }
  }
  if (calls && !calls->empty())
    found.calls = std::move(*calls);
  else
    found.text = std::move(held_);
  held_.clear();
  return found;
}

}  // namespace kvhive
