#pragma once
// What a Hugging Face config.json says about a decoder of one of the families that
// architecture.hpp lists.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/dtype.hpp"
#include "models/config/architecture.hpp"
#include "models/latent/latent_shape.hpp"
#include "models/quantization/quantization.hpp"
#include "models/config/rope_config.hpp"

namespace kvhive {

/// How DeepSeek's router narrows its choice before it chooses (topk_method group_limited_greedy).
struct ExpertGroups {
  std::int32_t count = 1;   ///< n_group
  std::int32_t chosen = 1;  ///< topk_group: those with the most likely experts
};

/// Llama 4: queries of layers without rotation grow with their position p, by the factor
/// log(floor((p + 1) / floor) + 1) * scale + 1.
struct QueryTuning {
  float floor = 0;  ///< floor_scale, tokens; 0: no tuning
  float scale = 0;  ///< attn_scale
};

/// The eps of the norms of latents and of narrow queries: DeepSeek's class gives them its default,
/// whatever rms_norm_eps says.
inline constexpr float kLatentEps = 1e-6f;

struct ModelConfig {
  const Architecture* architecture = &kArchitectures[0];
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t layers = 0;
  std::int32_t heads = 0;      ///< H, query heads
  std::int32_t kv_heads = 0;   ///< G
  std::int32_t head_size = 0;  ///< D of a query; even. With latent attention nope + rope
  std::int32_t vocab_size = 0;
  std::int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  RopeConfigs rope;
  float query_scalar = 0;              ///< scores are divided by its square root; 0: by that of D
  float score_factor = 1;              ///< and multiplied by this
  float attention_soft_cap = 0;        ///< scores s become cap * tanh(s / cap); 0: none
  float logit_soft_cap = 0;            ///< the same of logits
  std::int32_t experts = 0;            ///< of each sparse layer; 0: all layers are dense
  std::int32_t experts_per_token = 0;  ///< the most likely ones that compute a token
  std::int32_t expert_inner = 0;       ///< moe_intermediate_size: width of an expert
  bool are_expert_weights_normed =
      false;  ///< norm_topk_prob: the chosen experts' weights add up to 1
  ExpertScores expert_scores = ExpertScores::softmax;
  ExpertGroups expert_groups;       ///< 1 of 1: all are chosen from
  float routed_scale = 1;           ///< routed_scaling_factor, of the chosen experts' weights
  std::int32_t shared_experts = 0;  ///< n_shared_experts: as many that compute every token
  LatentShape latent;               ///< with latent attention, else empty
  std::vector<bool> sparse_layers;  ///< by layer: has experts; empty: none has
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  ///< of the attention's o_proj
  bool mlp_bias = false;
  std::int32_t sliding_window = 0;     ///< tokens that sliding layers see, own included; 0 = none
  std::vector<bool> sliding_layers;    ///< by layer: sees only the window; empty: none does
  std::int32_t attention_chunk = 0;    ///< tokens; rotated layers see their own chunk; 0 = none
  std::vector<bool> unrotated_layers;  ///< by layer: no rotation, sees all; empty: none
  bool has_l2_norms = false;  ///< rotated q and k of a head are divided by their root mean square
  QueryTuning query_tuning;   ///< of unrotated layers
  Quantization quantization;
  Dtype dtype = Dtype::f32;  ///< what the weights were saved as; each tensor's own dtype rules
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;

  /// Whether the layers of this model have such a weight: some of them, where only dense or only
  /// sparse layers have it.
  bool has(LayerWeight weight) const {
    if (kOptionalWeights.has(weight) && !architecture->optional.has(weight)) return false;
    switch (weight) {
      case LayerWeight::k:
      case LayerWeight::v: return !is_latent();
      case LayerWeight::q: return latent.query_rank == 0;
      case LayerWeight::q_a:
      case LayerWeight::q_a_norm:
      case LayerWeight::q_b: return latent.query_rank > 0;
      case LayerWeight::shared_gate:
      case LayerWeight::shared_up:
      case LayerWeight::shared_down: return shared_experts > 0;
      default: return true;
    }
  }

  bool is_latent() const { return architecture->attention == AttentionRule::latent; }
  /// Elements of a head's query and key that are rotated.
  std::int32_t rotated_size() const { return is_latent() ? latent.rope : head_size; }
  /// Elements of a head's value.
  std::int32_t value_size() const { return is_latent() ? latent.value : head_size; }

  /// How many tokens a layer attends to, the query's own included; 0: all before it.
  std::int32_t window_of(std::int32_t layer) const {
    return is_in(sliding_layers, layer) ? sliding_window : 0;
  }

  bool is_rotated(std::int32_t layer) const { return !is_in(unrotated_layers, layer); }
  /// The size of the chunks of which a layer attends to the query's own; 0: to all.
  std::int32_t chunk_of(std::int32_t layer) const {
    return is_rotated(layer) ? attention_chunk : 0;
  }

  /// What scores q.k are multiplied by.
  float score_scale() const;
  /// What embeddings are multiplied by. Models were trained with the root rounded to the type of
  /// their weights.
  float embedding_scale(Dtype weights) const;
  /// What embeddings that are given are multiplied by. A caller gives what Hugging Face's
  /// get_input_embeddings() makes of tokens: in Gemma 3, that is multiplied already.
  float given_embedding_scale(Dtype weights) const;
  /// Whether layers with a window rotate otherwise than the others.
  bool has_sliding_rope() const { return architecture->defaults.local_rope_theta > 0; }
  /// Whether there are norms behind attention and behind the feed-forward network, too.
  bool has_norms_behind() const { return architecture->family == Family::gemma; }

  /// Whether a layer has experts instead of one feed-forward network.
  bool is_sparse(std::int32_t layer) const { return is_in(sparse_layers, layer); }

 private:
  static bool is_in(const std::vector<bool>& layers, std::int32_t layer) {
    return static_cast<std::size_t>(layer) < layers.size() && layers[layer];
  }
};

}  // namespace kvhive
