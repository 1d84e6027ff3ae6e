#pragma once
// The Llama family in two tables: the weights of a layer, and what the architectures differ in.
// A model with one more weight is a row here, its name in an architecture's `optional`, and its use
// in transformer.cpp and gpu/gpu_transformer.cpp. What reads, converts and counts weights walks
// the list that model_tensors.hpp makes of these tables.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace kvhive {

enum class LayerWeight : std::uint8_t {
  input_norm,
  post_attention_norm,
  q_norm,
  k_norm,
  q,
  k,
  v,
  o,
  gate,
  up,
  down,
};

/// How many rows or columns a weight has, as config.json says.
enum class Width : std::uint8_t {
  none,     ///< no columns: the weight is a vector
  hidden,   ///< hidden_size
  inner,    ///< intermediate_size
  queries,  ///< H * D
  keys,     ///< G * D
  head,     ///< D
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
};

inline constexpr std::array kLayerWeights{
    LayerWeightRow{LayerWeight::input_norm, "input_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::post_attention_norm, "post_attention_layernorm", Width::hidden},
    LayerWeightRow{LayerWeight::q_norm, "self_attn.q_norm", Width::head},
    LayerWeightRow{LayerWeight::k_norm, "self_attn.k_norm", Width::head},
    LayerWeightRow{LayerWeight::q, "self_attn.q_proj", Width::queries, Width::hidden,
                   BiasRule::qkv},
    LayerWeightRow{LayerWeight::k, "self_attn.k_proj", Width::keys, Width::hidden, BiasRule::qkv},
    LayerWeightRow{LayerWeight::v, "self_attn.v_proj", Width::keys, Width::hidden, BiasRule::qkv},
    LayerWeightRow{LayerWeight::o, "self_attn.o_proj", Width::hidden, Width::queries,
                   BiasRule::output, ProductDtype::f32},
    LayerWeightRow{LayerWeight::gate, "mlp.gate_proj", Width::inner, Width::hidden, BiasRule::mlp},
    LayerWeightRow{LayerWeight::up, "mlp.up_proj", Width::inner, Width::hidden, BiasRule::mlp,
                   ProductDtype::model, Fusion::with_previous},
    LayerWeightRow{LayerWeight::down, "mlp.down_proj", Width::hidden, Width::inner, BiasRule::mlp,
                   ProductDtype::f32},
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
  never,       ///< sliding_window is ignored, as Hugging Face's class does
  always,      ///< sliding_window, where it is a number
  if_enabled,  ///< use_sliding_window and, from max_window_layers on, sliding_window
};

/// What decides about the bias of q, k, v and o.
enum class AttentionBiasRule : std::uint8_t {
  as_configured,  ///< attention_bias
  qkv_only,       ///< q, k and v always have one, o never
};

struct Architecture {
  std::string_view name;         ///< Hugging Face's class
  LayerWeightSet optional = {};  ///< weights that other models lack
  AttentionBiasRule attention_bias = AttentionBiasRule::as_configured;
  WindowRule window = WindowRule::never;
};

inline constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM"},
    {"MistralForCausalLM", {}, AttentionBiasRule::as_configured, WindowRule::always},
    {"Qwen2ForCausalLM", {}, AttentionBiasRule::qkv_only, WindowRule::if_enabled},
    {"Qwen3ForCausalLM",
     {LayerWeight::q_norm, LayerWeight::k_norm},
     AttentionBiasRule::as_configured,
     WindowRule::if_enabled},
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
