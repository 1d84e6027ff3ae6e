#include "models/config/load_model_config.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json_file.hpp"
#include "models/config/attention_config.hpp"
#include "models/config/config_limits.hpp"
#include "models/config/expert_config.hpp"
#include "models/config/text_part.hpp"

namespace kvhive {
namespace {

/// Fields with which a model computes something that kvhive does not, and the values with which it
/// does not matter. A field that is null or absent never matters.
struct Neutral {
  const char* field;
  std::vector<nlohmann::json> values;
  const char* wanted;
  /// The architectures that do compute it; null: none.
  bool (*is_read_by)(const Architecture&) = nullptr;
};

bool is_gemma(const Architecture& architecture) { return architecture.family == Family::gemma; }
bool rotates_in_two_ways(const Architecture& architecture) {
  return architecture.defaults.local_rope_theta > 0;
}
bool has_chunks(const Architecture& architecture) {
  return architecture.window == WindowRule::chunks;
}
bool has_qwens_experts(const Architecture& architecture) {
  return architecture.experts == ExpertRule::qwen;
}
bool has_local_experts(const Architecture& architecture) {
  return has_qwens_experts(architecture) || architecture.experts == ExpertRule::llama4;
}
bool has_deepseeks_experts(const Architecture& architecture) {
  return architecture.experts == ExpertRule::deepseek;
}

const std::vector<Neutral>& neutral_fields() {
  static const std::vector<Neutral> fields{
      {"compression_config", {}, "none: kvhive reads quantization_config"},
      {"attn_logit_softcapping", {0}, "none", is_gemma},
      {"final_logit_softcapping", {0}, "none", is_gemma},
      {"logit_scale", {1}, "1"},
      {"logits_scaling", {1}, "1"},
      {"embedding_multiplier", {1}, "1"},
      {"residual_multiplier", {1}, "1"},
      {"attention_multiplier", {}, "none: scores are divided by the square root of the head size"},
      {"query_pre_attn_scalar",
       {},
       "none: scores are divided by the square root of the head size",
       is_gemma},
      {"scale_emb", {1}, "1"},
      {"scale_depth", {}, "none"},
      {"dim_model_base", {}, "none"},
      {"partial_rotary_factor", {1}, "1: all of a head is rotated"},
      {"rotary_pct", {1}, "1: all of a head is rotated"},
      {"rope_interleaved", {false}, "false"},
      {"rope_local_base_freq", {}, "none", rotates_in_two_ways},
      {"no_rope_layers", {}, "none: every layer rotates", has_chunks},
      {"position_embedding_type", {"rope", "rotary", "absolute"}, "rope"},
      {"alibi", {false}, "false"},
      {"clip_qkv", {}, "none"},
      {"use_qk_norm", {false}, "false", has_chunks},
      {"qk_layernorm", {false}, "false"},
      {"attention_chunk_size", {}, "none", has_chunks},
      {"use_bidirectional_attention", {false}, "false"},
      {"num_experts",
       {0, 1},
       "1: this architecture has no mixture of experts here",
       has_qwens_experts},
      {"num_local_experts",
       {0, 1},
       "1: this architecture has no mixture of experts here",
       has_local_experts},
      {"n_routed_experts",
       {0, 1},
       "1: this architecture has no mixture of experts here",
       has_deepseeks_experts},
      {"n_shared_experts",
       {0},
       "0: this architecture has no shared experts here",
       has_deepseeks_experts},
      {"shared_expert_intermediate_size", {0}, "0: kvhive has no shared experts"},
  };
  return fields;
}

std::string names_of_architectures() {
  std::string names;
  for (const Architecture& known : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  for (const MultimodalArchitecture& known : kMultimodalArchitectures)
    names += ", " + std::string(known.name);
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
void read_neutral(const JsonFields& fields, const Architecture& architecture, FieldReader& reader) {
  for (const Neutral& neutral : neutral_fields()) {
    if (!fields.has(neutral.field)) continue;
    if (neutral.is_read_by != nullptr && neutral.is_read_by(architecture)) continue;
    const auto& value = fields.json().at(neutral.field);
    if (std::ranges::find(neutral.values, value) == neutral.values.end())
      reader.fail(fields.wrong(neutral.field, neutral.wanted, Errc::unsupported));
  }
}

/// Latent attention has no kv heads to share, and says a head's size in parts. Its class writes
/// head_dim, too: the part that is rotated.
void read_latent_heads(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (config.kv_heads != config.heads)
    reader.fail(fields.wrong("num_key_value_heads",
                             "num_attention_heads = " + std::to_string(config.heads),
                             Errc::unsupported));
  reader.take(config.latent, read_latent_shape(fields));
  config.head_size = config.latent.query();
}

/// A size that must be there, unless the architecture's class has a default.
void read_size(const JsonFields& fields, FieldReader& reader, const char* name, std::int64_t most,
               std::int32_t fallback, std::int32_t& size) {
  reader.take(size, fallback > 0 ? fields.integer_or(name, fallback, 1, most)
                                 : fields.integer(name, 1, most));
}

void read_sizes(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const ConfigDefaults& defaults = config.architecture->defaults;
  reader.integer(config.hidden_size, "hidden_size", kMaxWidth);
  reader.integer(config.intermediate_size, "intermediate_size", kMaxWidth);
  reader.integer(config.layers, "num_hidden_layers", kMaxLayers);
  read_size(fields, reader, "num_attention_heads", kMaxHeads, defaults.heads, config.heads);
  read_size(fields, reader, "num_key_value_heads", kMaxHeads,
            defaults.kv_heads > 0 ? defaults.kv_heads : std::max(config.heads, 1), config.kv_heads);
  read_size(fields, reader, "vocab_size", kMaxVocab, defaults.vocab_size, config.vocab_size);
  read_size(fields, reader, "max_position_embeddings", kMaxPositions, defaults.max_positions,
            config.max_position_embeddings);
  if (!reader.ok()) return;
  if (config.heads % config.kv_heads != 0)
    reader.fail(fields.wrong("num_key_value_heads",
                             "a divisor of num_attention_heads = " + std::to_string(config.heads)));
  if (config.is_latent())
    read_latent_heads(fields, reader, config);
  else if (fields.has("head_dim") || defaults.head_size > 0)
    read_size(fields, reader, "head_dim", kMaxHeadSize, defaults.head_size, config.head_size);
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

void read_rotation(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const ConfigDefaults& defaults = config.architecture->defaults;
  reader.take(config.rope, read_rope(fields, {.theta = defaults.rope_theta,
                                              .local_theta = defaults.local_rope_theta,
                                              .max_position = config.max_position_embeddings}));
  const RopeScaling& scaling = config.rope.full.scaling;
  if (!reader.ok() || scaling.kind != RopeScaling::Kind::yarn) return;
  // As vLLM takes it: published models leave max_position_embeddings at the original context.
  const double stretched = static_cast<double>(scaling.original_max_position) * scaling.factor;
  if (stretched > config.max_position_embeddings && stretched <= kMaxPositions)
    config.max_position_embeddings = static_cast<std::int32_t>(stretched);
  if (config.is_latent())
    config.score_factor = static_cast<float>(scaling.score_mscale * scaling.score_mscale);
}

/// Gemma's class reads hidden_activation, all others hidden_act.
void read_activation(const JsonFields& fields, FieldReader& reader, const ModelConfig& config) {
  const bool is_gemma = config.architecture->family == Family::gemma;
  const char* const field = is_gemma ? "hidden_activation" : "hidden_act";
  const std::string known = is_gemma ? "gelu_pytorch_tanh" : "silu";
  std::string activation;
  reader.take(activation, fields.text_or(field, known));
  if (reader.ok() && activation != known)
    reader.fail(fields.wrong(field, known, Errc::unsupported));
}

/// A soft cap: what is left out is the class's default, null is none.
void read_soft_cap(const JsonFields& fields, FieldReader& reader, const char* name, double fallback,
                   float& cap) {
  reader.take(
      cap, fields.is_null(name) ? Expected<double>(0) : fields.number_or(name, fallback, 0, 1e6));
}

/// Scores and logits of the Gemma family.
void read_scores(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  const ConfigDefaults& defaults = config.architecture->defaults;
  if (config.architecture->family != Family::gemma) return;
  reader.take(config.query_scalar,
              fields.number_or("query_pre_attn_scalar", defaults.query_scalar, 1e-3, 1e6));
  read_soft_cap(fields, reader, "attn_logit_softcapping", defaults.attention_soft_cap,
                config.attention_soft_cap);
  read_soft_cap(fields, reader, "final_logit_softcapping", defaults.logit_soft_cap,
                config.logit_soft_cap);
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
  reader.take(
      config.tie_word_embeddings,
      fields.boolean_or("tie_word_embeddings", config.architecture->defaults.tie_word_embeddings));
  reader.take(
      config.rms_norm_eps,
      fields.number_or("rms_norm_eps", config.architecture->defaults.rms_norm_eps, 1e-12, 1));
  const bool is_qkv_only = config.architecture->attention_bias == AttentionBiasRule::qkv_only;
  if (config.is_latent())
    for (const auto& [name, has_bias] :
         {std::pair{"attention_bias", attention_bias}, {"mlp_bias", config.mlp_bias}})
      if (reader.ok() && has_bias)
        reader.fail(
            fields.wrong(name, "false: this architecture has no biases here", Errc::unsupported));
  config.qkv_bias = attention_bias || is_qkv_only;
  config.output_bias = attention_bias && !is_qkv_only;
}

/// Scales of packed experts are published in forms of their own.
void check_quantization(const JsonFields& fields, FieldReader& reader, const ModelConfig& config) {
  if (reader.ok() && config.architecture->experts == ExpertRule::llama4 &&
      config.quantization.kind != Quantization::Kind::none)
    reader.fail(fields.wrong("quantization_config",
                             "none: of this architecture kvhive reads weights of 16 and 32 bits",
                             Errc::unsupported));
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

Expected<ModelConfig> parse_config(const nlohmann::json& whole, const std::string& where) {
  const auto text = text_part(whole, where);
  if (!text) return forward_error(text);
  const nlohmann::json& object = *text;
  const JsonFields fields(object, where);
  FieldReader reader(fields);
  ModelConfig config;
  reader.take(config.architecture, read_architecture(fields));
  if (reader.ok()) read_sizes(fields, reader, config);
  if (reader.ok()) {
    read_rotation(fields, reader, config);
    read_activation(fields, reader, config);
    read_dtype(fields, reader, config);
    read_variant(fields, reader, config);
    read_attention(fields, reader, config);
    read_scores(fields, reader, config);
    read_experts(fields, reader, config);
    reader.take(config.quantization, read_quantization(fields));
    check_quantization(fields, reader, config);
    read_neutral(fields, *config.architecture, reader);
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
