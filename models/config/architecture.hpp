#pragma once
// The model families in two tables: the weights of a layer, and what the architectures differ in.
// A model with one more weight is a row here, its name in an architecture's `optional`, and its use
// in transformer.cpp and gpu/gpu_forward.cpp (or a refusal in gpu/gpu_support.cpp). What reads,
// converts and counts weights walks the list that model_tensors.hpp makes of these tables.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace kvhive {

enum class LayerWeight : std::uint8_t {
  input_norm,
  post_attention_norm,
  pre_feedforward_norm,
  post_feedforward_norm,
  q_norm,
  k_norm,
  q,
  k,
  v,
  o,
  gate,
  up,
  down,
  router,
  expert_gate,
  expert_up,
  expert_down,
  shared_gate,
  shared_up,
  shared_down,
  q_a,
  q_a_norm,
  q_b,
  kv_a,
  kv_a_norm,
  kv_b,
};

/// How many rows or columns a weight has, as config.json says.
enum class Width : std::uint8_t {
  none,          ///< no columns: the weight is a vector
  hidden,        ///< hidden_size
  inner,         ///< intermediate_size
  queries,       ///< H * D
  values,        ///< H times the size of a head's value, which is D but with latent attention
  keys,          ///< G * D
  head,          ///< D
  experts,       ///< num_experts
  expert_inner,  ///< moe_intermediate_size
  shared_inner,  ///< n_shared_experts * moe_intermediate_size
  query_rank,    ///< q_lora_rank
  latent,        ///< kv_lora_rank
  latent_row,    ///< kv_lora_rank + qk_rope_head_dim: what the cache keeps of a token
  latent_heads,  ///< H * (qk_nope_head_dim + v_head_dim)
};

/// Which layers have a weight, and how often.
enum class Occurrence : std::uint8_t {
  each_layer,
  dense_layers,   ///< those without experts
  sparse_layers,  ///< those with experts
  each_expert,    ///< of sparse layers; the name has a * for the expert's number, unless packed
};

/// Which field of ModelConfig says whether a weight has a bias.
enum class BiasRule : std::uint8_t { none, qkv, output, mlp };

/// What a GPU stores the product as: the model's dtype, or f32 where it is added to the residual.
enum class ProductDtype : std::uint8_t { model, f32 };

/// Whether one product computes this weight's rows and those of the row before; on a GPU the two
/// then lie without a gap.
enum class Fusion : std::uint8_t { none, with_previous };

struct LayerWeightRow {
  LayerWeight weight;
  std::string_view name;  ///< in the files, between "model.layers.N." and ".weight"
  Width rows;
  Width columns = Width::none;
  BiasRule bias = BiasRule::none;
  ProductDtype product = ProductDtype::model;
  Fusion fusion = Fusion::none;
  Occurrence occurrence = Occurrence::each_layer;
};

inline constexpr std::array kLayerWeights{
    LayerWeightRow{LayerWeight::input_norm, "input_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::post_attention_norm, "post_attention_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::pre_feedforward_norm, "pre_feedforward_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::post_feedforward_norm, "post_feedforward_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::q_norm, "self_attn.q_norm", Width::head},
    LayerWeightRow{LayerWeight::k_norm, "self_attn.k_norm", Width::head},
    LayerWeightRow{LayerWeight::q, "self_attn.q_proj", Width::queries, Width::hidden,
                   BiasRule::qkv},
    LayerWeightRow{LayerWeight::k, "self_attn.k_proj", Width::keys, Width::hidden, BiasRule::qkv},
    LayerWeightRow{LayerWeight::v, "self_attn.v_proj", Width::keys, Width::hidden, BiasRule::qkv},
    LayerWeightRow{LayerWeight::o, "self_attn.o_proj", Width::hidden, Width::values,
                   BiasRule::output, ProductDtype::f32},
    LayerWeightRow{LayerWeight::gate, "mlp.gate_proj", Width::inner, Width::hidden, BiasRule::mlp,
                   ProductDtype::model, Fusion::none, Occurrence::dense_layers},
    LayerWeightRow{LayerWeight::up, "mlp.up_proj", Width::inner, Width::hidden, BiasRule::mlp,
                   ProductDtype::model, Fusion::with_previous, Occurrence::dense_layers},
    LayerWeightRow{LayerWeight::down, "mlp.down_proj", Width::hidden, Width::inner, BiasRule::mlp,
                   ProductDtype::f32, Fusion::none, Occurrence::dense_layers},
    LayerWeightRow{LayerWeight::router, "mlp.gate", Width::experts, Width::hidden, BiasRule::none,
                   ProductDtype::f32, Fusion::none, Occurrence::sparse_layers},
    LayerWeightRow{LayerWeight::expert_gate, "mlp.experts.*.gate_proj", Width::expert_inner,
                   Width::hidden, BiasRule::none, ProductDtype::model, Fusion::none,
                   Occurrence::each_expert},
    LayerWeightRow{LayerWeight::expert_up, "mlp.experts.*.up_proj", Width::expert_inner,
                   Width::hidden, BiasRule::none, ProductDtype::model, Fusion::with_previous,
                   Occurrence::each_expert},
    LayerWeightRow{LayerWeight::expert_down, "mlp.experts.*.down_proj", Width::hidden,
                   Width::expert_inner, BiasRule::none, ProductDtype::model, Fusion::none,
                   Occurrence::each_expert},
    LayerWeightRow{LayerWeight::shared_gate, "mlp.shared_experts.gate_proj", Width::shared_inner,
                   Width::hidden, BiasRule::none, ProductDtype::model, Fusion::none,
                   Occurrence::sparse_layers},
    LayerWeightRow{LayerWeight::shared_up, "mlp.shared_experts.up_proj", Width::shared_inner,
                   Width::hidden, BiasRule::none, ProductDtype::model, Fusion::with_previous,
                   Occurrence::sparse_layers},
    LayerWeightRow{LayerWeight::shared_down, "mlp.shared_experts.down_proj", Width::hidden,
                   Width::shared_inner, BiasRule::none, ProductDtype::f32, Fusion::none,
                   Occurrence::sparse_layers},
    LayerWeightRow{LayerWeight::q_a, "self_attn.q_a_proj", Width::query_rank, Width::hidden},
    LayerWeightRow{LayerWeight::q_a_norm, "self_attn.q_a_layernorm", Width::query_rank},
    LayerWeightRow{LayerWeight::q_b, "self_attn.q_b_proj", Width::queries, Width::query_rank},
    LayerWeightRow{LayerWeight::kv_a, "self_attn.kv_a_proj_with_mqa", Width::latent_row,
                   Width::hidden},
    LayerWeightRow{LayerWeight::kv_a_norm, "self_attn.kv_a_layernorm", Width::latent},
    LayerWeightRow{LayerWeight::kv_b, "self_attn.kv_b_proj", Width::latent_heads, Width::latent},
};

/// Arrays by LayerWeight have this size.
inline constexpr std::size_t kLayerWeightCount = kLayerWeights.size();

/// A set of layer weights.
class LayerWeightSet {
 public:
  constexpr LayerWeightSet(std::initializer_list<LayerWeight> weights = {}) {
    for (const LayerWeight weight : weights) bits_ |= bit(weight);
  }
  constexpr bool has(LayerWeight weight) const { return (bits_ & bit(weight)) != 0; }
  constexpr void add(LayerWeightSet others) { bits_ |= others.bits_; }

 private:
  static constexpr std::uint64_t bit(LayerWeight weight) {
    return std::uint64_t{1} << static_cast<unsigned>(weight);
  }
  std::uint64_t bits_ = 0;
};

/// Which layers attend to a window only.
enum class WindowRule : std::uint8_t {
  never,             ///< sliding_window is ignored, as Hugging Face's class does
  always,            ///< all
  if_enabled,        ///< all, with use_sliding_window
  late_if_enabled,   ///< from max_window_layers on, with use_sliding_window
  every_other,       ///< as layer_types says, else the first, the third and so on
  all_but_each_nth,  ///< as layer_types says, else all but every sliding_window_pattern-th
  chunks,            ///< layers that rotate see their own chunk, the others all
};

/// What decides about the bias of q, k, v and o.
enum class AttentionBiasRule : std::uint8_t {
  as_configured,  ///< attention_bias
  qkv_only,       ///< q, k and v always have one, o never
};

/// The two families: what an embedding is multiplied by, what a norm multiplies by, the function
/// between the two halves of the feed-forward network, and where the norms are.
enum class Family : std::uint8_t {
  /// Embeddings as they are; norms by weight; SiLU; norms before attention and before the
  /// feed-forward network.
  llama,
  /// Embeddings times the root of hidden_size; norms by 1 + weight; GELU (by tanh); also norms
  /// behind attention and behind the feed-forward network, before both are added to the residual.
  gemma,
};

/// What attention keeps of a token.
enum class AttentionRule : std::uint8_t {
  heads,   ///< K and V of each kv head
  latent,  ///< one latent row, of which every head makes its own (DeepSeek-V2)
};

/// How config.json describes a mixture of experts.
enum class ExpertRule : std::uint8_t { none, qwen, deepseek, llama4 };

/// What a router makes of its logits.
enum class ExpertScores : std::uint8_t {
  softmax,  ///< over all experts; it weights what the chosen ones put out
  sigmoid,  ///< of each by itself; it weights what goes into the chosen ones
};

/// Which elements of a hidden row's head rotate together.
enum class RotatedPairs : std::uint8_t { halves, neighbours };

/// How a layer's experts lie in the files: each with matrices of its own, or all in one tensor
/// [experts, columns, rows], transposed, which has no ".weight" behind its name.
enum class Packing : std::uint8_t { none, alone, first_of_two, second_of_two };

/// Where a weight has another name than in kLayerWeights.
struct WeightName {
  LayerWeight weight;
  std::string_view name;
  Packing packing = Packing::none;
};

/// What Hugging Face's configuration class of an architecture takes for fields that are left out.
struct ConfigDefaults {
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  double local_rope_theta = 0;    ///< rope_local_base_freq; 0: the architecture has no such field
  double attention_soft_cap = 0;  ///< attn_logit_softcapping; 0: none
  double logit_soft_cap = 0;      ///< final_logit_softcapping; 0: none
  double query_scalar = 0;        ///< query_pre_attn_scalar; 0: it is the head size
  // 0: config.json must say so; num_key_value_heads and head_dim follow from the others.
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_size = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_positions = 0;
};

struct Architecture {
  std::string_view name;         ///< Hugging Face's class
  LayerWeightSet optional = {};  ///< weights that other models lack
  AttentionBiasRule attention_bias = AttentionBiasRule::as_configured;
  WindowRule window = WindowRule::never;
  Family family = Family::llama;
  ExpertRule experts = ExpertRule::none;  ///< in the layers that config.json says
  AttentionRule attention = AttentionRule::heads;
  RotatedPairs rotated_pairs = RotatedPairs::halves;  ///< of heads' queries and keys
  std::span<const WeightName> names = {};
  ConfigDefaults defaults = {};
  /// Its embedding layer, in Hugging Face's class, multiplies what it looks up.
  bool embedding_is_scaled = false;
};

inline constexpr LayerWeightSet kQueryAndKeyNorms{LayerWeight::q_norm, LayerWeight::k_norm};
inline constexpr LayerWeightSet kGemma2Norms{LayerWeight::pre_feedforward_norm,
                                             LayerWeight::post_feedforward_norm};
inline constexpr LayerWeightSet kGemma3Norms{LayerWeight::pre_feedforward_norm,
                                             LayerWeight::post_feedforward_norm,
                                             LayerWeight::q_norm, LayerWeight::k_norm};

inline constexpr LayerWeightSet kLatentWeights{
    LayerWeight::q_a,         LayerWeight::q_a_norm,  LayerWeight::q_b,
    LayerWeight::kv_a,        LayerWeight::kv_a_norm, LayerWeight::kv_b,
    LayerWeight::shared_gate, LayerWeight::shared_up, LayerWeight::shared_down};
inline constexpr LayerWeightSet kSharedExpert{LayerWeight::shared_gate, LayerWeight::shared_up,
                                              LayerWeight::shared_down};

inline constexpr WeightName kLlama4Names[] = {
    {LayerWeight::gate, "feed_forward.gate_proj"},
    {LayerWeight::up, "feed_forward.up_proj"},
    {LayerWeight::down, "feed_forward.down_proj"},
    {LayerWeight::router, "feed_forward.router"},
    {LayerWeight::expert_gate, "feed_forward.experts.gate_up_proj", Packing::first_of_two},
    {LayerWeight::expert_up, "feed_forward.experts.gate_up_proj", Packing::second_of_two},
    {LayerWeight::expert_down, "feed_forward.experts.down_proj", Packing::alone},
    {LayerWeight::shared_gate, "feed_forward.shared_expert.gate_proj"},
    {LayerWeight::shared_up, "feed_forward.shared_expert.up_proj"},
    {LayerWeight::shared_down, "feed_forward.shared_expert.down_proj"},
};

inline constexpr Architecture kArchitectures[] = {
    {.name = "LlamaForCausalLM"},
    {.name = "MistralForCausalLM", .window = WindowRule::always},
    {.name = "Qwen2ForCausalLM",
     .attention_bias = AttentionBiasRule::qkv_only,
     .window = WindowRule::late_if_enabled},
    {.name = "Qwen3ForCausalLM",
     .optional = kQueryAndKeyNorms,
     .window = WindowRule::late_if_enabled},
    {.name = "Qwen3MoeForCausalLM",
     .optional = kQueryAndKeyNorms,
     .window = WindowRule::if_enabled,
     .experts = ExpertRule::qwen},
    {.name = "Gemma2ForCausalLM",
     .optional = kGemma2Norms,
     .window = WindowRule::every_other,
     .family = Family::gemma,
     .defaults = {.tie_word_embeddings = true,
                  .attention_soft_cap = 50,
                  .logit_soft_cap = 30,
                  .query_scalar = 256}},
    {.name = "Gemma3ForCausalLM",
     .optional = kGemma3Norms,
     .window = WindowRule::all_but_each_nth,
     .family = Family::gemma,
     .defaults = {.tie_word_embeddings = true,
                  .rope_theta = 1e6,
                  .local_rope_theta = 1e4,
                  .query_scalar = 256,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_size = 256,
                  .vocab_size = 262208,
                  .max_positions = 131072},
     .embedding_is_scaled = true},
    {.name = "DeepseekV2ForCausalLM",
     .optional = kLatentWeights,
     .experts = ExpertRule::deepseek,
     .attention = AttentionRule::latent},
    {.name = "Llama4ForCausalLM",
     .optional = kSharedExpert,
     .window = WindowRule::chunks,
     .experts = ExpertRule::llama4,
     .rotated_pairs = RotatedPairs::neighbours,
     .names = kLlama4Names,
     .defaults = {.rms_norm_eps = 1e-5,
                  .rope_theta = 500000,
                  .heads = 40,
                  .kv_heads = 8,
                  .head_size = 128,
                  .vocab_size = 202048,
                  .max_positions = 131072}},
};

/// Models that take images, too. Their text is computed by another class, which their text_config
/// describes.
struct MultimodalArchitecture {
  std::string_view name;
  std::string_view text;  ///< one of kArchitectures
};
inline constexpr MultimodalArchitecture kMultimodalArchitectures[] = {
    {"Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"},
    {"Llama4ForConditionalGeneration", "Llama4ForCausalLM"},
};

/// The weights that not every model has: those that an architecture names as its own.
inline constexpr LayerWeightSet kOptionalWeights = [] {
  LayerWeightSet all;
  for (const Architecture& architecture : kArchitectures) all.add(architecture.optional);
  return all;
}();

constexpr bool rows_are_in_the_order_of_the_enum() {
  for (std::size_t i = 0; i < kLayerWeights.size(); ++i)
    if (static_cast<std::size_t>(kLayerWeights[i].weight) != i) return false;
  return true;
}
static_assert(rows_are_in_the_order_of_the_enum());

}  // namespace kvhive
