#include "models/config/text_part.hpp"

#include <algorithm>

#include "base/json_file.hpp"
#include "models/config/architecture.hpp"

namespace kvhive {
namespace {

/// Takes a field of the object around the text's; null is as good as absent.
void take(nlohmann::json& text, const JsonFields& around, const char* field) {
  if (around.has(field)) text[field] = around.json().at(field);
}

}  // namespace

Expected<nlohmann::json> text_part(const nlohmann::json& config, const std::string& where) {
  const JsonFields around(config, where);
  const nlohmann::json names = config.value("architectures", nlohmann::json());
  const auto* const multimodal =
      std::ranges::find_if(kMultimodalArchitectures, [&](const MultimodalArchitecture& known) {
        return names == nlohmann::json::array({known.name});
      });
  if (multimodal == std::end(kMultimodalArchitectures)) return config;
  const auto described = around.object("text_config");
  if (!described) return forward_error(described);
  nlohmann::json text = described->json();
  text["architectures"] = {multimodal->text};
  for (const char* const field : {"bos_token_id", "eos_token_id"}) take(text, around, field);
  if (around.has("dtype") || around.has("torch_dtype"))
    for (const char* const field : {"dtype", "torch_dtype"}) {
      text.erase(field);
      take(text, around, field);
    }
  const JsonFields inside(described->json(), where);
  for (const char* const field : {"tie_word_embeddings", "quantization_config"})
    if (!inside.has(field)) take(text, around, field);
  return text;
}

}  // namespace kvhive
