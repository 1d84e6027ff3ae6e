#include "tools/serve/openai/served_model.hpp"

#include <limits>
#include <utility>

#include "base/json_file.hpp"
#include "models/config/text_part.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

Expected<SamplingDefaults> sampling_defaults_of(const std::filesystem::path& directory) {
  SamplingDefaults defaults;
  const auto file = directory / "generation_config.json";
  if (!std::filesystem::exists(file)) return defaults;
  const auto json = read_json_object(file);
  if (!json) return forward_error(json);
  const JsonFields fields(*json, file.string());
  const auto temperature = fields.number_or("temperature", defaults.temperature, 0, 1e6);
  if (!temperature) return forward_error(temperature);
  const auto top_p = fields.number_or("top_p", defaults.top_p, 0, 1);
  if (!top_p) return forward_error(top_p);
  const auto top_k =
      fields.integer_or("top_k", defaults.top_k, -1, std::numeric_limits<std::int32_t>::max());
  if (!top_k) return forward_error(top_k);
  const auto min_p = fields.number_or("min_p", defaults.min_p, 0, 1);
  if (!min_p) return forward_error(min_p);
  const auto repetition =
      fields.number_or("repetition_penalty", defaults.repetition_penalty, 1e-6, 1e6);
  if (!repetition) return forward_error(repetition);
  return SamplingDefaults{*temperature, *top_p, *top_k, *min_p, *repetition};
}

Expected<nlohmann::json> read_config(const std::filesystem::path& file) {
  return read_json_object(file).and_then(
      [&](const nlohmann::json& config) { return text_part(config, file.string()); });
}

/// As the engines read them (models/config/load_model_config.cpp): those of generation_config.json,
/// if it has any, else those of config.json.
Expected<std::vector<TokenId>> end_tokens_of(const std::filesystem::path& directory) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!std::filesystem::exists(directory / name)) continue;
    const auto json = read_config(directory / name);
    if (!json) return forward_error(json);
    const auto ids = json->find("eos_token_id");
    if (ids == json->end() || ids->is_null()) continue;
    std::vector<TokenId> tokens;
    for (const auto& id : ids->is_array() ? *ids : nlohmann::json::array({*ids})) {
      if (!id.is_number_unsigned())
        return JsonFields(*json, (directory / name).string())
            .wrong("eos_token_id", "a token id, or a list of them");
      tokens.push_back(id.get<TokenId>());
    }
    return tokens;
  }
  return std::vector<TokenId>();
}

Expected<std::uint32_t> hidden_size_of(const std::filesystem::path& directory) {
  const auto file = directory / "config.json";
  if (!std::filesystem::exists(file)) return 0;
  const auto json = read_config(file);
  if (!json) return forward_error(json);
  return JsonFields(*json, file.string())
      .integer_or("hidden_size", 0, 0, std::numeric_limits<std::int32_t>::max())
      .map([](std::int64_t size) { return static_cast<std::uint32_t>(size); });
}

}  // namespace

Expected<ServedModel> ServedModel::load(std::string name, const std::filesystem::path& directory,
                                        std::uint32_t max_model_len) {
  auto tokenizer = load_tokenizer(directory);
  if (!tokenizer) return forward_error(tokenizer);
  const auto sampling = sampling_defaults_of(directory);
  if (!sampling) return forward_error(sampling);
  auto end_tokens = end_tokens_of(directory);
  if (!end_tokens) return forward_error(end_tokens);
  const auto hidden_size = hidden_size_of(directory);
  if (!hidden_size) return forward_error(hidden_size);
  return ServedModel{.name = std::move(name),
                     .directory = directory.string(),
                     .max_model_len = max_model_len,
                     .tokenizer = std::move(*tokenizer),
                     .sampling = *sampling,
                     .created = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch()),
                     .end_tokens = std::move(*end_tokens),
                     .adapters = {},
                     .hidden_size = *hidden_size};
}

std::string ServedModel::text_of(TokenId token) const {
  Utf8Stream stream;
  std::string text = stream.push(tokenizer.token_bytes(token));
  return text + stream.finish();
}

}  // namespace kvhive
