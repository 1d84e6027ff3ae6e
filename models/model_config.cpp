#include "models/model_config.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/json_file.hpp"

namespace kvhive {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadSize = 1024;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

// What Hugging Face's configuration classes take for a field that is left out.
constexpr std::int64_t kDefaultWindow = 4096;
constexpr std::int64_t kDefaultFullLayers = 28;

/// Fields with which a model computes something that kvhive does not, and the values with which it
/// does not matter. A field that is null or absent never matters.
struct Neutral {
  const char* field;
  std::vector<nlohmann::json> values;
  const char* wanted;
};

const std::vector<Neutral>& neutral_fields() {
  static const std::vector<Neutral> fields{
      {"quantization_config", {}, "none: kvhive takes weights in float32, bfloat16 and float16"},
      {"compression_config", {}, "none: kvhive takes weights in float32, bfloat16 and float16"},
      {"attn_logit_softcapping", {0}, "none"},
      {"final_logit_softcapping", {0}, "none"},
      {"logit_scale", {1}, "1"},
      {"logits_scaling", {1}, "1"},
      {"embedding_multiplier", {1}, "1"},
      {"residual_multiplier", {1}, "1"},
      {"attention_multiplier", {}, "none: scores are divided by the square root of the head size"},
      {"query_pre_attn_scalar", {}, "none: scores are divided by the square root of the head size"},
      {"scale_emb", {1}, "1"},
      {"scale_depth", {}, "none"},
      {"dim_model_base", {}, "none"},
      {"partial_rotary_factor", {1}, "1: all of a head is rotated"},
      {"rotary_pct", {1}, "1: all of a head is rotated"},
      {"rope_interleaved", {false}, "false"},
      {"rope_local_base_freq", {}, "none"},
      {"no_rope_layers", {}, "none: every layer rotates"},
      {"position_embedding_type", {"rope", "rotary", "absolute"}, "rope"},
      {"alibi", {false}, "false"},
      {"clip_qkv", {}, "none"},
      {"use_qk_norm", {false}, "false"},
      {"qk_layernorm", {false}, "false"},
      {"attention_chunk_size", {}, "none"},
      {"num_experts", {0, 1}, "1: kvhive has no mixture of experts"},
      {"num_local_experts", {0, 1}, "1: kvhive has no mixture of experts"},
      {"n_routed_experts", {0, 1}, "1: kvhive has no mixture of experts"},
  };
  return fields;
}

/// Copies a checked field into the config; false leaves `error` filled. Lets a parser read like the
/// list of fields that it is.
class FieldReader {
 public:
  explicit FieldReader(const JsonFields& fields) : fields_(fields) {}

  template <class T, class Value>
  void take(T& target, Expected<Value> value) {
    if (failed_) return;
    if (value)
      target = static_cast<T>(std::move(*value));
    else
      failed_ = std::move(value.error());
  }
  void integer(std::int32_t& target, const char* name, std::int64_t most) {
    take(target, fields_.integer(name, 1, most));
  }
  void fail(tl::unexpected<Error> error) {
    if (!failed_) failed_ = std::move(error.value());
  }
  bool ok() const { return !failed_; }
  tl::unexpected<Error> error() { return tl::unexpected<Error>(std::move(*failed_)); }

 private:
  const JsonFields& fields_;
  std::optional<Error> failed_;
};

std::string names_of_architectures() {
  std::string names;
  for (const Architecture& known : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

Expected<const Architecture*> read_architecture(const JsonFields& fields) {
  const auto names = fields.array("architectures");
  if (!names) return forward_error(names);
  if ((*names)->size() == 1 && (*names)->front().is_string()) {
    const auto name = (*names)->front().get<std::string>();
    for (const Architecture& known : kArchitectures)
      if (known.name == name) return &known;
  }
  return fields.wrong("architectures", "one of " + names_of_architectures(), Errc::unsupported);
}

/// Refuses fields whose meaning would be lost: the tokens would be wrong without a word.
void read_neutral(const JsonFields& fields, FieldReader& reader) {
  for (const Neutral& neutral : neutral_fields()) {
    if (!fields.has(neutral.field)) continue;
    const auto& value = fields.json().at(neutral.field);
    if (std::ranges::find(neutral.values, value) == neutral.values.end())
      reader.fail(fields.wrong(neutral.field, neutral.wanted, Errc::unsupported));
  }
}

void read_sizes(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  reader.integer(config.hidden_size, "hidden_size", kMaxWidth);
  reader.integer(config.intermediate_size, "intermediate_size", kMaxWidth);
  reader.integer(config.layers, "num_hidden_layers", kMaxLayers);
  reader.integer(config.heads, "num_attention_heads", kMaxHeads);
  reader.take(config.kv_heads,
              fields.integer_or("num_key_value_heads", config.heads, 1, kMaxHeads));
  reader.integer(config.vocab_size, "vocab_size", kMaxVocab);
  reader.integer(config.max_position_embeddings, "max_position_embeddings", kMaxPositions);
  if (!reader.ok()) return;
  if (config.heads % config.kv_heads != 0)
    reader.fail(fields.wrong("num_key_value_heads",
                             "a divisor of num_attention_heads = " + std::to_string(config.heads)));
  if (fields.has("head_dim"))
    reader.integer(config.head_size, "head_dim", kMaxHeadSize);
  else if (config.hidden_size % config.heads == 0 &&
           config.hidden_size / config.heads <= kMaxHeadSize)
    config.head_size = config.hidden_size / config.heads;
  else
    reader.fail(fields.wrong(
        "hidden_size", "a small multiple of num_attention_heads = " + std::to_string(config.heads) +
                           ", or an explicit head_dim"));
  if (reader.ok() && config.head_size % 2 != 0)
    reader.fail(failure(Errc::bad_format, fields.where() + ": head size " +
                                              std::to_string(config.head_size) +
                                              " is odd, expected an even one: RoPE rotates pairs"));
  if (reader.ok() && config.head_size % 8 != 0)
    reader.fail(failure(Errc::unsupported, fields.where() + ": head size " +
                                               std::to_string(config.head_size) +
                                               "; attention takes multiples of 8"));
}

void read_llama3_scaling(const JsonFields& scaling, FieldReader& reader, RopeScaling& rope) {
  rope.kind = RopeScaling::Kind::llama3;
  reader.take(rope.low_freq_factor, scaling.number("low_freq_factor", 1e-3, 1e6));
  reader.take(rope.high_freq_factor, scaling.number("high_freq_factor", 1e-3, 1e6));
  reader.take(rope.original_max_position,
              scaling.integer("original_max_position_embeddings", 1, kMaxPositions));
  if (reader.ok() && rope.high_freq_factor <= rope.low_freq_factor)
    reader.fail(scaling.wrong("high_freq_factor", "more than low_freq_factor"));
}

void read_rope_kind(const JsonFields& scaling, FieldReader& reader, RopeScaling& rope) {
  const std::string key = scaling.has("rope_type") ? "rope_type" : "type";
  std::string kind;
  reader.take(kind, scaling.text(key));
  if (!reader.ok() || kind == "default") return;
  if (kind != "llama3" && kind != "linear")
    return reader.fail(scaling.wrong(key, "default, linear or llama3", Errc::unsupported));
  reader.take(rope.factor, scaling.number("factor", 1, 1e6));
  if (kind == "llama3")
    read_llama3_scaling(scaling, reader, rope);
  else
    rope.kind = RopeScaling::Kind::linear;
}

/// rope_theta and rope_scaling, or transformers 5's rope_parameters that holds both.
void read_rope(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const bool has_parameters = fields.has("rope_parameters");
  const std::string key = has_parameters ? "rope_parameters" : "rope_scaling";
  reader.take(config.rope_theta, fields.number_or("rope_theta", 10000, 1, 1e12));
  if (!fields.has(key)) return;
  if (has_parameters && fields.has("rope_scaling") &&
      fields.json().at("rope_scaling") != fields.json().at("rope_parameters"))
    return reader.fail(
        fields.wrong("rope_scaling", "what rope_parameters says, or none", Errc::unsupported));
  const auto scaling = fields.object(key);
  if (!scaling) return reader.fail(forward_error(scaling));
  reader.take(config.rope_theta, scaling->number_or("rope_theta", config.rope_theta, 1, 1e12));
  read_neutral(*scaling, reader);  // transformers 5 has partial_rotary_factor here
  read_rope_kind(*scaling, reader, config.rope_scaling);
}

void read_activation(const JsonFields& fields, FieldReader& reader) {
  std::string activation;
  reader.take(activation, fields.text_or("hidden_act", "silu"));
  if (reader.ok() && activation != "silu")
    reader.fail(fields.wrong("hidden_act", "silu", Errc::unsupported));
}

void read_dtype(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const std::string key = fields.has("torch_dtype") ? "torch_dtype" : "dtype";
  std::string name;
  reader.take(name, fields.text_or(key, "float32"));
  if (!reader.ok()) return;
  const auto dtype = parse_dtype(name);
  if (!dtype)
    return reader.fail(fields.wrong(key, "float32, bfloat16 or float16", Errc::unsupported));
  config.dtype = *dtype;
}

/// Which biases there are; what config.json leaves out, the architecture implies.
void read_variant(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  bool attention_bias = false;
  reader.take(attention_bias, fields.boolean_or("attention_bias", false));
  reader.take(config.mlp_bias, fields.boolean_or("mlp_bias", false));
  reader.take(config.tie_word_embeddings, fields.boolean_or("tie_word_embeddings", false));
  reader.take(config.rms_norm_eps, fields.number_or("rms_norm_eps", 1e-6, 1e-12, 1));
  const bool is_qkv_only = config.architecture->attention_bias == AttentionBiasRule::qkv_only;
  config.qkv_bias = attention_bias || is_qkv_only;
  config.output_bias = attention_bias && !is_qkv_only;
}

/// "layer_types" says anew, layer by layer, what the fields before have said of windows.
void check_layer_types(const JsonFields& fields, FieldReader& reader, const ModelConfig& config) {
  if (!reader.ok() || !fields.has("layer_types")) return;
  nlohmann::json known = nlohmann::json::array();
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    known.push_back(config.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  if (fields.json().at("layer_types") != known)
    reader.fail(fields.wrong(
        "layer_types",
        "as sliding_window, use_sliding_window and max_window_layers say: " + shown(known),
        Errc::unsupported));
}

/// A window that is null is none; one that is left out is Hugging Face's default.
void read_window(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const WindowRule rule = config.architecture->window;
  bool is_used = rule == WindowRule::always;
  if (rule == WindowRule::if_enabled)
    reader.take(is_used, fields.boolean_or("use_sliding_window", false));
  const bool is_null = fields.json().contains("sliding_window") && !fields.has("sliding_window");
  if (!is_used || is_null) return;
  reader.take(config.sliding_window,
              fields.integer_or("sliding_window", kDefaultWindow, 1, kMaxPositions));
  if (rule == WindowRule::if_enabled)
    reader.take(config.first_sliding_layer,
                fields.integer_or("max_window_layers", kDefaultFullLayers, 0, kMaxLayers));
}

Expected<TokenId> checked_token(const JsonFields& fields, const std::string& name,
                                const nlohmann::json& value, std::int32_t vocab) {
  if (value.is_number_integer()) {
    const auto id = value.get<std::int64_t>();
    if (id >= 0 && id < vocab) return static_cast<TokenId>(id);
  }
  return fields.wrong(name, "token ids in 0.." + std::to_string(vocab - 1));
}

/// An id or a list of ids; absent is an empty list.
Expected<std::vector<TokenId>> read_tokens(const nlohmann::json& object, const JsonFields& fields,
                                           const std::string& name, std::int32_t vocab) {
  std::vector<TokenId> ids;
  if (!fields.has(name)) return ids;
  const auto& value = object.at(name);
  const auto list = value.is_array() ? value : nlohmann::json::array({value});
  for (const auto& item : list) {
    auto id = checked_token(fields, name, item, vocab);
    if (!id) return forward_error(id);
    ids.push_back(*id);
  }
  return ids;
}

void read_special_tokens(const nlohmann::json& object, const JsonFields& fields,
                         FieldReader& reader, ModelConfig& config) {
  std::vector<TokenId> bos;
  reader.take(bos, read_tokens(object, fields, "bos_token_id", config.vocab_size));
  reader.take(config.eos, read_tokens(object, fields, "eos_token_id", config.vocab_size));
  if (!bos.empty()) config.bos = bos.front();
}

Expected<ModelConfig> parse_config(const nlohmann::json& object, const std::string& where) {
  const JsonFields fields(object, where);
  FieldReader reader(fields);
  ModelConfig config;
  reader.take(config.architecture, read_architecture(fields));
  if (reader.ok()) read_sizes(fields, reader, config);
  if (reader.ok()) {
    read_rope(fields, reader, config);
    read_activation(fields, reader);
    read_dtype(fields, reader, config);
    read_variant(fields, reader, config);
    read_window(fields, reader, config);
    check_layer_types(fields, reader, config);
    read_neutral(fields, reader);
    read_special_tokens(object, fields, reader, config);
  }
  if (!reader.ok()) return reader.error();
  return config;
}

}  // namespace

Expected<ModelConfig> load_model_config(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  const auto object = read_json_object(path);
  if (!object) return forward_error(object);
  auto config = parse_config(*object, path.string());
  const auto generation_path = directory / "generation_config.json";
  if (!config || !std::filesystem::exists(generation_path)) return config;

  const auto generation = read_json_object(generation_path);
  if (!generation) return forward_error(generation);
  const JsonFields fields(*generation, generation_path.string());
  auto eos = read_tokens(*generation, fields, "eos_token_id", config->vocab_size);
  if (!eos) return forward_error(eos);
  if (!eos->empty()) config->eos = std::move(*eos);
  return config;
}

}  // namespace kvhive
