#include "models/config/attention_config.hpp"

#include <string>
#include <vector>

#include "models/config/config_limits.hpp"

namespace kvhive {
namespace {

// What Hugging Face's configuration classes take for a field that is left out.
constexpr std::int64_t kDefaultWindow = 4096;
constexpr std::int64_t kDefaultFullLayers = 28;
constexpr std::int32_t kDefaultWindowPattern = 6;
constexpr std::int64_t kDefaultChunk = 8192;
constexpr std::int64_t kDefaultUnrotatedInterval = 4;
constexpr double kDefaultTuningFloor = 8192;
constexpr double kDefaultTuningScale = 0.1;

/// How layer_types calls the layers, as the config says by now.
nlohmann::json layer_types_of(const ModelConfig& config) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    types.push_back(config.window_of(layer) > 0  ? "sliding_attention"
                    : config.chunk_of(layer) > 0 ? "chunked_attention"
                                                 : "full_attention");
  return types;
}

/// Where "layer_types" says anew, layer by layer, what other fields have said.
void check_layer_types(const JsonFields& fields, FieldReader& reader, const ModelConfig& config) {
  if (!reader.ok() || !fields.has("layer_types")) return;
  const nlohmann::json known = layer_types_of(config);
  if (fields.json().at("layer_types") != known)
    reader.fail(fields.wrong(
        "layer_types",
        "as " +
            std::string(config.attention_chunk > 0
                            ? "no_rope_layers says: "
                            : "sliding_window, use_sliding_window and max_window_layers say: ") +
            shown(known),
        Errc::unsupported));
}

/// Gemma: "layer_types" decides which layers slide.
void take_layer_types(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (!reader.ok() || !fields.has("layer_types")) return;
  const auto& types = fields.json().at("layer_types");
  const bool is_list = types.is_array() && types.size() == std::size_t(config.layers);
  for (std::int32_t layer = 0; is_list && layer < config.layers; ++layer) {
    if (types[layer] != "sliding_attention" && types[layer] != "full_attention") break;
    config.sliding_layers[layer] = types[layer] == "sliding_attention";
    if (layer + 1 == config.layers) return;
  }
  reader.fail(fields.wrong("layer_types",
                           "sliding_attention or full_attention for each of " +
                               std::to_string(config.layers) + " layers",
                           Errc::unsupported));
}

/// The layers that slide, where sliding_window is a number.
void read_sliding_layers(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  std::int32_t first = 0, pattern = kDefaultWindowPattern;
  const WindowRule rule = config.architecture->window;
  if (rule == WindowRule::late_if_enabled)
    reader.take(first, fields.integer_or("max_window_layers", kDefaultFullLayers, 0, kMaxLayers));
  if (rule == WindowRule::every_other) pattern = 2;
  if (rule == WindowRule::all_but_each_nth)
    for (const char* const name : {"_sliding_window_pattern", "sliding_window_pattern"})
      reader.take(pattern, fields.integer_or(name, pattern, 1, kMaxLayers));
  const bool has_pattern = rule == WindowRule::every_other || rule == WindowRule::all_but_each_nth;
  config.sliding_layers.resize(config.layers);
  for (std::int32_t layer = first; layer < config.layers; ++layer)
    config.sliding_layers[layer] = !has_pattern || (layer + 1) % pattern != 0;
  if (has_pattern) take_layer_types(fields, reader, config);
}

/// A window that is null is none; one that is left out is Hugging Face's default.
void read_window(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const WindowRule rule = config.architecture->window;
  bool is_used = rule != WindowRule::never;
  if (rule == WindowRule::if_enabled || rule == WindowRule::late_if_enabled)
    reader.take(is_used, fields.boolean_or("use_sliding_window", false));
  const bool has_pattern = rule == WindowRule::every_other || rule == WindowRule::all_but_each_nth;
  if (has_pattern && fields.is_null("sliding_window"))
    return reader.fail(fields.wrong("sliding_window", "a number of tokens"));
  if (is_used && !fields.is_null("sliding_window")) {
    reader.take(config.sliding_window,
                fields.integer_or("sliding_window", kDefaultWindow, 1, kMaxPositions));
    read_sliding_layers(fields, reader, config);
  }
  if (config.architecture->family == Family::llama) check_layer_types(fields, reader, config);
}

// -- Llama 4 --------------------------------------------------------------------------------------

/// no_rope_layers has a 1 for each layer that rotates (sic); without it, all but each
/// no_rope_layer_interval-th do.
Expected<std::vector<bool>> read_unrotated_layers(const JsonFields& fields, std::int32_t layers) {
  constexpr const char* kField = "no_rope_layers";
  const auto interval =
      fields.integer_or("no_rope_layer_interval", kDefaultUnrotatedInterval, 1, kMaxLayers);
  if (!interval) return forward_error(interval);
  std::vector<bool> unrotated(layers);
  for (std::int32_t layer = 0; layer < layers; ++layer)
    unrotated[layer] = (layer + 1) % *interval == 0;
  if (!fields.has(kField)) return unrotated;
  const auto listed = fields.array(kField);
  if (!listed) return forward_error(listed);
  if ((*listed)->empty()) return unrotated;
  const bool has_all = (*listed)->size() == unrotated.size();
  for (std::size_t layer = 0; has_all && layer < unrotated.size(); ++layer) {
    const auto& item = (**listed)[layer];
    if (item != 0 && item != 1) break;
    unrotated[layer] = item == 0;
    if (layer + 1 == unrotated.size()) return unrotated;
  }
  return fields.wrong(kField, "0 or 1 for each of " + std::to_string(layers) + " layers");
}

/// attn_temperature_tuning was a number once, which only decided whether there is any.
Expected<bool> read_has_tuning(const JsonFields& fields) {
  constexpr const char* kField = "attn_temperature_tuning";
  if (fields.has(kField) && fields.json().at(kField).is_number_integer())
    return fields.json().at(kField) != 0;
  return fields.boolean_or(kField, true);
}

void read_query_tuning(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  bool has_tuning = false;
  reader.take(has_tuning, read_has_tuning(fields));
  QueryTuning tuning;
  reader.take(tuning.floor, fields.number_or("floor_scale", kDefaultTuningFloor, 1, 1e9));
  reader.take(tuning.scale, fields.number_or("attn_scale", kDefaultTuningScale, 0, 1e3));
  if (has_tuning) config.query_tuning = tuning;
}

/// Layers that rotate attend to their own chunk, the others to everything.
void read_chunks(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (fields.is_null("attention_chunk_size"))
    return reader.fail(fields.wrong("attention_chunk_size", "a number of tokens"));
  reader.take(config.attention_chunk,
              fields.integer_or("attention_chunk_size", kDefaultChunk, 1, kMaxPositions));
  reader.take(config.unrotated_layers, read_unrotated_layers(fields, config.layers));
  reader.take(config.has_l2_norms, fields.boolean_or("use_qk_norm", true));
  read_query_tuning(fields, reader, config);
  check_layer_types(fields, reader, config);
}

}  // namespace

void read_attention(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (config.architecture->window == WindowRule::chunks)
    read_chunks(fields, reader, config);
  else
    read_window(fields, reader, config);
}

}  // namespace kvhive
