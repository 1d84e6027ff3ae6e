#include "models/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/json_file.hpp"

namespace kvhive {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadSize = 1024;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr std::int64_t kMaxExperts = 4096;

// What Hugging Face's configuration classes take for a field that is left out.
constexpr std::int64_t kDefaultWindow = 4096;
constexpr std::int64_t kDefaultFullLayers = 28;
constexpr std::int32_t kDefaultWindowPattern = 6;
constexpr std::int64_t kDefaultExpertsPerToken = 8;

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
bool has_qwens_experts(const Architecture& architecture) {
  return architecture.experts == ExpertRule::qwen;
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
      {"no_rope_layers", {}, "none: every layer rotates"},
      {"position_embedding_type", {"rope", "rotary", "absolute"}, "rope"},
      {"alibi", {false}, "false"},
      {"clip_qkv", {}, "none"},
      {"use_qk_norm", {false}, "false"},
      {"qk_layernorm", {false}, "false"},
      {"attention_chunk_size", {}, "none"},
      {"use_bidirectional_attention", {false}, "false"},
      {"num_experts",
       {0, 1},
       "1: this architecture has no mixture of experts here",
       has_qwens_experts},
      {"num_local_experts",
       {0, 1},
       "1: this architecture has no mixture of experts here",
       has_qwens_experts},
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
  if (config.is_latent())
    read_latent_heads(fields, reader, config);
  else if (fields.has("head_dim"))
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

/// Whether a field is there and null, which is another thing than left out where a class has a
/// default.
bool is_null(const JsonFields& fields, const std::string& name) {
  return fields.json().contains(name) && !fields.has(name);
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
      cap, is_null(fields, name) ? Expected<double>(0) : fields.number_or(name, fallback, 0, 1e6));
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

/// The layers that mlp_only_layers names, as a set by layer.
Expected<std::vector<bool>> read_dense_layers(const JsonFields& fields, std::int32_t layers) {
  constexpr const char* kField = "mlp_only_layers";
  std::vector<bool> dense(layers);
  if (!fields.has(kField)) return dense;
  const auto listed = fields.array(kField);
  if (!listed) return forward_error(listed);
  for (const auto& item : **listed) {
    if (!item.is_number_integer() || item.get<std::int64_t>() < 0)
      return fields.wrong(kField, "a list of layers");
    if (item.get<std::uint64_t>() < dense.size()) dense[item.get<std::size_t>()] = true;
  }
  return dense;
}

/// Qwen3-MoE: which layers have experts, and how they are chosen (transformers:
/// Qwen3MoeDecoderLayer).
void read_qwens_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  constexpr const char *kNew = "num_local_experts", *kOld = "num_experts";
  if (fields.has(kNew) && fields.has(kOld) && fields.json().at(kNew) != fields.json().at(kOld))
    return reader.fail(fields.wrong(kNew, "what num_experts says"));
  reader.integer(config.experts, fields.has(kNew) ? kNew : kOld, kMaxExperts);
  reader.take(config.experts_per_token,
              fields.integer_or("num_experts_per_tok", kDefaultExpertsPerToken, 1, kMaxExperts));
  reader.integer(config.expert_inner, "moe_intermediate_size", kMaxWidth);
  std::int32_t step = 1;
  reader.take(step, fields.integer_or("decoder_sparse_step", 1, 1, kMaxLayers));
  std::vector<bool> dense;
  reader.take(dense, read_dense_layers(fields, config.layers));
  if (!reader.ok()) return;
  config.sparse_layers.resize(config.layers);
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    config.sparse_layers[layer] = !dense[layer] && (layer + 1) % step == 0;
}

/// DeepSeek-V2: the groups of experts that its router chooses from first.
void read_expert_groups(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  std::string method;
  reader.take(method, fields.text_or("topk_method", "greedy"));
  if (!reader.ok() || method == "greedy") return;
  if (method != "group_limited_greedy")
    return reader.fail(
        fields.wrong("topk_method", "greedy or group_limited_greedy", Errc::unsupported));
  ExpertGroups& groups = config.expert_groups;
  reader.integer(groups.count, "n_group", kMaxExperts);
  reader.integer(groups.chosen, "topk_group", kMaxExperts);
  if (!reader.ok()) return;
  if (config.experts % groups.count != 0)
    return reader.fail(fields.wrong(
        "n_group", "a divisor of n_routed_experts = " + std::to_string(config.experts)));
  if (groups.chosen > groups.count)
    return reader.fail(
        fields.wrong("topk_group", "at most n_group = " + std::to_string(groups.count)));
  const std::int32_t left = config.experts / groups.count * groups.chosen;
  if (config.experts_per_token > left)
    reader.fail(fields.wrong("num_experts_per_tok", "at most the " + std::to_string(left) +
                                                        " experts of topk_group groups"));
}

/// DeepSeek-V2: as its own class and vLLM read it (modeling_deepseek.py). Where its own class, vLLM
/// and transformers compute different things, it is refused.
void read_deepseeks_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (is_null(fields, "n_routed_experts")) return;
  reader.integer(config.experts, "n_routed_experts", kMaxExperts);
  reader.integer(config.experts_per_token, "num_experts_per_tok", kMaxExperts);
  reader.integer(config.expert_inner, "moe_intermediate_size", kMaxWidth);
  if (!is_null(fields, "n_shared_experts"))
    reader.take(config.shared_experts, fields.integer("n_shared_experts", 0, kMaxExperts));
  reader.take(config.routed_scale, fields.number_or("routed_scaling_factor", 1, 1e-6, 1e6));
  std::string scores;
  reader.take(scores, fields.text_or("scoring_func", "softmax"));
  if (reader.ok() && scores != "softmax")
    reader.fail(fields.wrong("scoring_func", "softmax", Errc::unsupported));
  read_expert_groups(fields, reader, config);
  std::int32_t first = 0, step = 1;
  reader.take(first, fields.integer_or("first_k_dense_replace", 0, 0, kMaxLayers));
  reader.take(step, fields.integer_or("moe_layer_freq", 1, 1, kMaxLayers));
  if (!reader.ok()) return;
  if (config.are_expert_weights_normed && config.routed_scale != 1)
    reader.fail(fields.wrong("norm_topk_prob",
                             "false where routed_scaling_factor is not 1: programs disagree about "
                             "what both together mean",
                             Errc::unsupported));
  config.sparse_layers.resize(config.layers);
  for (std::int32_t layer = first; layer < config.layers; ++layer)
    config.sparse_layers[layer] = layer % step == 0;
}

/// Which layers have experts, and how they are chosen.
void read_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (config.architecture->experts == ExpertRule::none) return;
  reader.take(config.are_expert_weights_normed, fields.boolean_or("norm_topk_prob", false));
  switch (config.architecture->experts) {
    case ExpertRule::none: return;
    case ExpertRule::qwen: read_qwens_experts(fields, reader, config); break;
    case ExpertRule::deepseek: read_deepseeks_experts(fields, reader, config); break;
  }
  if (reader.ok() && config.experts_per_token > config.experts)
    reader.fail(fields.wrong(
        "num_experts_per_tok",
        (config.is_latent() ? "at most n_routed_experts = " : "at most num_experts = ") +
            std::to_string(config.experts)));
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
  reader.take(config.rms_norm_eps, fields.number_or("rms_norm_eps", 1e-6, 1e-12, 1));
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

/// How layer_types calls the layers, as the config says by now.
nlohmann::json layer_types_of(const ModelConfig& config) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    types.push_back(config.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  return types;
}

/// Llama, Mistral, Qwen: "layer_types" says anew, layer by layer, what other fields have said.
void check_layer_types(const JsonFields& fields, FieldReader& reader, const ModelConfig& config) {
  if (!reader.ok() || !fields.has("layer_types")) return;
  const nlohmann::json known = layer_types_of(config);
  if (fields.json().at("layer_types") != known)
    reader.fail(fields.wrong(
        "layer_types",
        "as sliding_window, use_sliding_window and max_window_layers say: " + shown(known),
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
  if (has_pattern && is_null(fields, "sliding_window"))
    return reader.fail(fields.wrong("sliding_window", "a number of tokens"));
  if (is_used && !is_null(fields, "sliding_window")) {
    reader.take(config.sliding_window,
                fields.integer_or("sliding_window", kDefaultWindow, 1, kMaxPositions));
    read_sliding_layers(fields, reader, config);
  }
  if (config.architecture->family == Family::llama) check_layer_types(fields, reader, config);
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
    read_rotation(fields, reader, config);
    read_activation(fields, reader, config);
    read_dtype(fields, reader, config);
    read_variant(fields, reader, config);
    read_window(fields, reader, config);
    read_scores(fields, reader, config);
    read_experts(fields, reader, config);
    reader.take(config.quantization, read_quantization(fields));
    read_neutral(fields, *config.architecture, reader);
    read_special_tokens(object, fields, reader, config);
  }
  if (!reader.ok()) return reader.error();
  return config;
}

}  // namespace

float ModelConfig::score_scale() const {
  return score_factor / std::sqrt(query_scalar > 0 ? query_scalar : static_cast<float>(head_size));
}

float ModelConfig::embedding_scale(Dtype weights) const {
  if (architecture->family == Family::llama) return 1;
  const float root = std::sqrt(static_cast<float>(hidden_size));
  switch (weights) {
    case Dtype::bf16: return float_of_bf16(bf16_of_float(root));
    case Dtype::f16: return float_of_f16(f16_of_float(root));
    default: return root;
  }
}

float ModelConfig::given_embedding_scale(Dtype weights) const {
  return architecture->embedding_is_scaled ? 1 : embedding_scale(weights);
}

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
