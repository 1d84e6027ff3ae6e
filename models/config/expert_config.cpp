#include "models/config/expert_config.hpp"

#include <string>
#include <vector>

#include "models/config/config_limits.hpp"

namespace kvhive {
namespace {

// What Hugging Face's configuration classes take for a field that is left out.
constexpr std::int64_t kDefaultExpertsPerToken = 8;
constexpr std::int64_t kLlama4Experts = 16;
constexpr std::int64_t kLlama4DenseWidth = 16384;

/// The layers that a field lists, as a set by layer.
Expected<std::vector<bool>> read_layers(const JsonFields& fields, const char* field,
                                        std::int32_t layers) {
  std::vector<bool> set(layers);
  if (!fields.has(field)) return set;
  const auto listed = fields.array(field);
  if (!listed) return forward_error(listed);
  for (const auto& item : **listed) {
    if (!item.is_number_integer() || item.get<std::int64_t>() < 0)
      return fields.wrong(field, "a list of layers");
    if (item.get<std::uint64_t>() < set.size()) set[item.get<std::size_t>()] = true;
  }
  return set;
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
  reader.take(dense, read_layers(fields, "mlp_only_layers", config.layers));
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
  if (fields.is_null("n_routed_experts")) return;
  reader.integer(config.experts, "n_routed_experts", kMaxExperts);
  reader.integer(config.experts_per_token, "num_experts_per_tok", kMaxExperts);
  reader.integer(config.expert_inner, "moe_intermediate_size", kMaxWidth);
  if (!fields.is_null("n_shared_experts"))
    reader.take(config.shared_experts, fields.integer("n_shared_experts", 0, kMaxExperts));
  if (reader.ok() && std::int64_t{config.shared_experts} * config.expert_inner > kMaxWidth)
    reader.fail(fields.wrong("n_shared_experts",
                             "so few that they are at most " + std::to_string(kMaxWidth) +
                                 " wide together (moe_intermediate_size = " +
                                 std::to_string(config.expert_inner) + " each)"));
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

/// Llama 4: intermediate_size is an expert's width, and that of the one that computes every token
/// (transformers: Llama4TextMoe).
void read_llama4s_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  config.expert_scores = ExpertScores::sigmoid;
  config.expert_inner = config.intermediate_size;
  config.shared_experts = 1;
  reader.take(config.experts,
              fields.integer_or("num_local_experts", kLlama4Experts, 1, kMaxExperts));
  reader.take(config.experts_per_token,
              fields.integer_or("num_experts_per_tok", 1, 1, kMaxExperts));
  reader.take(config.intermediate_size,
              fields.integer_or("intermediate_size_mlp", kLlama4DenseWidth, 1, kMaxWidth));
  std::int32_t step = 1;
  reader.take(step, fields.integer_or("interleave_moe_layer_step", 1, 1, kMaxLayers));
  config.sparse_layers.assign(config.layers, false);
  if (fields.has("moe_layers"))
    return reader.take(config.sparse_layers, read_layers(fields, "moe_layers", config.layers));
  for (std::int32_t layer = step - 1; layer < config.layers; layer += step)
    config.sparse_layers[layer] = true;
}

}  // namespace

const char* field_of_experts(ExpertRule rule) {
  switch (rule) {
    case ExpertRule::deepseek: return "n_routed_experts";
    case ExpertRule::llama4: return "num_local_experts";
    default: return "num_experts";
  }
}

void read_experts(const JsonFields& fields, FieldReader& reader, ModelConfig& config) {
  if (config.architecture->experts == ExpertRule::none) return;
  if (config.architecture->experts != ExpertRule::llama4)
    reader.take(config.are_expert_weights_normed, fields.boolean_or("norm_topk_prob", false));
  switch (config.architecture->experts) {
    case ExpertRule::none: return;
    case ExpertRule::qwen: read_qwens_experts(fields, reader, config); break;
    case ExpertRule::deepseek: read_deepseeks_experts(fields, reader, config); break;
    case ExpertRule::llama4: read_llama4s_experts(fields, reader, config); break;
  }
  if (reader.ok() && config.experts_per_token > config.experts)
    reader.fail(fields.wrong("num_experts_per_tok",
                             "at most " +
                                 std::string(field_of_experts(config.architecture->experts)) +
                                 " = " + std::to_string(config.experts)));
}

}  // namespace kvhive
