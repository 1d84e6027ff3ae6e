#include "models/transformer.hpp"

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "models/activations.hpp"
#include "models/experts.hpp"
#include "models/adapters/lora_adapter.hpp"
#include "models/rope.hpp"
#include "models/row_ops.hpp"
#include "models/transformer_weights.hpp"
#include "models/config/load_model_config.hpp"

namespace kvhive {
namespace {

ExpertShape expert_shape(const ModelConfig& config) {
  return {config.hidden_size, config.expert_inner};
}

/// The cache of a layer with the checkpoint's scales, if it has some and the cache is of fp8.
PagedKv with_scales(PagedKv kv, std::optional<KvScaleValues>& scales) {
  const bool is_fp8 = kv.dtype == Dtype::e4m3 || kv.dtype == Dtype::e5m2;
  if (is_fp8 && scales) kv.scales = {.k = &scales->k, .v = &scales->v};
  return kv;
}

/// Queries [T, H, D] of a layer without rotation: the more keys there are, the larger.
void tune_queries(const ModelConfig& config, std::span<const std::int32_t> positions,
                  std::span<float> q) {
  const auto [floor, scale] = config.query_tuning;
  if (floor == 0) return;
  const std::size_t width = q.size() / positions.size();
  for (std::size_t t = 0; t < positions.size(); ++t) {
    const float turns = std::floor((static_cast<float>(positions[t]) + 1) / floor);
    scale_in_place(q.subspan(t * width, width), std::log(turns + 1) * scale + 1);
  }
}

/// Some tokens of a batch.
struct TokenRange {
  std::size_t first = 0, count = 0;

  /// Where a place in the batch is in the range, or its nearest end.
  std::size_t within(std::int32_t token) const {
    return std::clamp(static_cast<std::size_t>(token), first, first + count) - first;
  }
};

}  // namespace

struct Transformer::State {
  ModelConfig config;
  TransformerWeights weights;
  Rope rope;
  std::optional<Rope> sliding_rope;  ///< of layers with a window, where they rotate otherwise
  AttentionBackend attention;
  Activations rows;
  LayerGroups ungrouped = one_group(config);
  LayerGroups grouped = group_layers(config);
  std::vector<LoraAdapter> adapters{};
  std::vector<float> ones =
      std::vector<float>(config.head_size, 1.0f);  ///< of norms without weights

  struct Product {
    LayerWeight weight;
    std::span<float> to;
  };
  /// Products of some tokens' rows by a layer's matrices, and what the sequences' adapters add.
  void multiply(const ForwardBatch& batch, const LayerWeights& layer, const TokenRange& tokens,
                std::span<const float> from, std::initializer_list<Product> products);
  /// Of all tokens' rows.
  void multiply(const ForwardBatch& batch, const LayerWeights& layer, std::span<const float> from,
                std::initializer_list<Product> products) {
    multiply(batch, layer, {0, batch.tokens.size()}, from, products);
  }
  void adapt(const ForwardBatch& batch, const LayerWeights& layer, const TokenRange& tokens,
             std::span<const float> from, const Product& product);
  void embed(const ForwardBatch& batch);
  void attend(const ForwardBatch& batch, std::int32_t index, const PagedKv& layer_kv,
              GroupId group);
  void place_heads(const ForwardBatch& batch, std::int32_t index);
  void attend_latents(const ForwardBatch& batch, const LayerWeights& layer, const PagedLatents& kv,
                      GroupId group);
  void project_latents(const ForwardBatch& batch, const LayerWeights& layer);
  void norm(const LayerWeights& layer, LayerWeight weight, std::span<const float> from,
            std::span<float> to);
  void feed_forward(const ForwardBatch& batch, const LayerWeights& layer);
  void run_dense(const ForwardBatch& batch, const LayerWeights& layer);
  void run_sparse(const LayerWeights& layer);
  void run_shared(const LayerWeights& layer);
  void project(std::span<const std::int32_t> wanted, std::span<float> logits);
};

void Transformer::State::embed(const ForwardBatch& batch) {
  const std::size_t width = config.hidden_size;
  for (std::size_t t = 0; t < batch.tokens.size(); ++t)
    read_floats(weights.embedding, batch.tokens[t] * width,
                std::span(rows.hidden).subspan(t * width, width));
  const float scale = config.embedding_scale(weights.embedding.dtype);
  if (scale != 1) scale_in_place(rows.hidden, scale);
  for (const EmbeddedRow& given : batch.embedded) {
    const auto row = std::span(rows.hidden).subspan(given.row * width, width);
    std::ranges::copy(given.values, row.begin());
    if (const float factor = config.given_embedding_scale(weights.embedding.dtype); factor != 1)
      scale_in_place(row, factor);
  }
  rope.angles(batch.positions, rows.angles);
  if (sliding_rope) sliding_rope->angles(batch.positions, rows.sliding_angles);
}

void Transformer::State::norm(const LayerWeights& layer, LayerWeight weight,
                              std::span<const float> from, std::span<float> to) {
  rms_norm(from, layer.norm(weight), config.rms_norm_eps, to);
}

void Transformer::State::multiply(const ForwardBatch& batch, const LayerWeights& layer,
                                  const TokenRange& tokens, std::span<const float> from,
                                  std::initializer_list<Product> products) {
  boost::container::small_vector<Matmul::Output, 3> outputs;
  for (const auto& [weight, to] : products) outputs.push_back({&layer.product(weight), to});
  Matmul::apply_all(from, {outputs.data(), outputs.size()});
  if (batch.adapters.empty()) return;
  for (const Product& product : products) adapt(batch, layer, tokens, from, product);
}

void Transformer::State::adapt(const ForwardBatch& batch, const LayerWeights& layer,
                               const TokenRange& tokens, std::span<const float> from,
                               const Product& product) {
  const auto index = static_cast<std::int32_t>(&layer - weights.layers.data());
  const std::size_t in = from.size() / tokens.count, out = product.to.size() / tokens.count;
  for (std::size_t b = 0; b < batch.adapters.size();) {
    const std::int32_t adapter = batch.adapters[b];
    const std::size_t begin = tokens.within(batch.query_start[b]);
    while (b < batch.adapters.size() && batch.adapters[b] == adapter) ++b;
    const std::size_t count = tokens.within(batch.query_start[b]) - begin;
    if (adapter < 0 || count == 0) continue;
    KV_CHECK(std::size_t(adapter) < adapters.size(), adapter, adapters.size());
    adapters[std::size_t(adapter)].add(index, product.weight, from.subspan(begin * in, count * in),
                                       product.to.subspan(begin * out, count * out), rows.adapted);
  }
}

/// Tells the layer's queries and keys where they are.
void Transformer::State::place_heads(const ForwardBatch& batch, std::int32_t index) {
  if (!config.is_rotated(index)) return tune_queries(config, batch.positions, rows.q);
  const bool has_other_angles = config.window_of(index) > 0 && sliding_rope;
  const RopeAngles& angles = has_other_angles ? rows.sliding_angles : rows.angles;
  const auto rotate = [&](std::span<float> of, std::int32_t heads) {
    if (config.architecture->rotated_pairs == RotatedPairs::halves)
      rope.rotate(of, heads, angles);
    else
      rope.rotate_neighbours(of, static_cast<std::size_t>(config.head_size), heads, angles);
    if (config.has_l2_norms) rms_norm(of, ones, config.rms_norm_eps, of);
  };
  rotate(rows.q, config.heads);
  rotate(rows.k, config.kv_heads);
}

void Transformer::State::attend(const ForwardBatch& batch, std::int32_t index,
                                const PagedKv& layer_kv, GroupId group) {
  LayerWeights& layer = weights.layers[index];
  const PagedKv kv = with_scales(layer_kv, layer.kv_scales);
  norm(layer, LayerWeight::input_norm, rows.hidden, rows.normed);
  multiply(batch, layer, rows.normed,
           {{LayerWeight::q, rows.q}, {LayerWeight::k, rows.k}, {LayerWeight::v, rows.v}});
  if (config.has(LayerWeight::q_norm)) {
    norm(layer, LayerWeight::q_norm, rows.q, rows.q);
    norm(layer, LayerWeight::k_norm, rows.k, rows.k);
  }
  place_heads(batch, index);

  attention.write({.k = rows.k.data(),
                   .v = rows.v.data(),
                   .slot_mapping = batch.slots_of(group).data(),
                   .kv = kv,
                   .T = static_cast<std::int32_t>(batch.tokens.size())});
  attention.attend({.q = rows.q.data(),
                    .kv = kv,
                    .block_table = batch.table_of(group).data(),
                    .query_start = batch.query_start.data(),
                    .kv_len = batch.kv_len.data(),
                    .out = rows.heads.data(),
                    .B = static_cast<std::int32_t>(batch.kv_len.size()),
                    .H = config.heads,
                    .M = batch.max_blocks,
                    .window = config.window_of(index),
                    .chunk = config.chunk_of(index),
                    .soft_cap = config.attention_soft_cap,
                    .scale = config.score_scale()});
  multiply(batch, layer, rows.heads, {{LayerWeight::o, rows.normed}});
  if (config.has_norms_behind())
    norm(layer, LayerWeight::post_attention_norm, rows.normed, rows.normed);
  add_in_place(rows.hidden, rows.normed);
}

/// Rows of latents for the cache, and the queries for them, from `normed`.
void Transformer::State::project_latents(const ForwardBatch& batch, const LayerWeights& layer) {
  const LatentShape& shape = config.latent;
  if (shape.query_rank > 0) {
    multiply(batch, layer, rows.normed,
             {{LayerWeight::q_a, rows.narrow_q}, {LayerWeight::kv_a, rows.kv_row}});
    rms_norm(rows.narrow_q, layer.norm(LayerWeight::q_a_norm), kLatentEps, rows.narrow_q);
    multiply(batch, layer, rows.narrow_q, {{LayerWeight::q_b, rows.q}});
  } else {
    multiply(batch, layer, rows.normed,
             {{LayerWeight::q, rows.q}, {LayerWeight::kv_a, rows.kv_row}});
  }
  layer.heads->absorb(rows.q, rows.row_q, rows.head_scratch);
  rope.rotate_neighbours(std::span(rows.row_q).subspan(shape.rank), shape.row(), config.heads,
                         rows.angles);

  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    const float* const row = &rows.kv_row[t * shape.row()];
    std::copy_n(row, shape.rank, &rows.latent[t * shape.rank]);
    std::copy_n(row + shape.rank, shape.rope, &rows.shared_key[t * shape.rope]);
  }
  rms_norm(rows.latent, layer.norm(LayerWeight::kv_a_norm), kLatentEps, rows.latent);
  rope.rotate_neighbours(rows.shared_key, shape.rope, 1, rows.angles);
}

void Transformer::State::attend_latents(const ForwardBatch& batch, const LayerWeights& layer,
                                        const PagedLatents& kv, GroupId group) {
  norm(layer, LayerWeight::input_norm, rows.hidden, rows.normed);
  project_latents(batch, layer);
  attention.write_latents({.latent = rows.latent.data(),
                           .rope = rows.shared_key.data(),
                           .slot_mapping = batch.slots_of(group).data(),
                           .kv = kv,
                           .T = static_cast<std::int32_t>(batch.tokens.size())});
  attention.attend_latents({.q = rows.row_q.data(),
                            .kv = kv,
                            .block_table = batch.table_of(group).data(),
                            .query_start = batch.query_start.data(),
                            .kv_len = batch.kv_len.data(),
                            .out = rows.attended.data(),
                            .B = static_cast<std::int32_t>(batch.kv_len.size()),
                            .H = config.heads,
                            .M = batch.max_blocks,
                            .scale = config.score_scale()});
  layer.heads->expand(rows.attended, rows.heads, rows.head_scratch);
  multiply(batch, layer, rows.heads, {{LayerWeight::o, rows.normed}});
  add_in_place(rows.hidden, rows.normed);
}

void Transformer::State::feed_forward(const ForwardBatch& batch, const LayerWeights& layer) {
  const bool has_behind = config.has_norms_behind();
  norm(layer, has_behind ? LayerWeight::pre_feedforward_norm : LayerWeight::post_attention_norm,
       rows.hidden, rows.normed);
  if (layer.experts.empty())
    run_dense(batch, layer);
  else
    run_sparse(layer);
  if (has_behind) norm(layer, LayerWeight::post_feedforward_norm, rows.normed, rows.normed);
  add_in_place(rows.hidden, rows.normed);
}

/// One feed-forward network, from `normed` to `normed`, for some tokens after the others.
void Transformer::State::run_dense(const ForwardBatch& batch, const LayerWeights& layer) {
  const std::size_t all = batch.tokens.size(), together = Activations::inner_rows(all);
  for (std::size_t first = 0; first < all; first += together) {
    const TokenRange tokens{first, std::min(together, all - first)};
    const auto normed = std::span(rows.normed)
                            .subspan(first * config.hidden_size, tokens.count * config.hidden_size);
    const auto gate = std::span(rows.gate).first(tokens.count * config.intermediate_size);
    const auto up = std::span(rows.up).first(gate.size());
    multiply(batch, layer, tokens, normed, {{LayerWeight::gate, gate}, {LayerWeight::up, up}});
    if (config.architecture->family == Family::gemma)
      gelu_multiply(gate, up);
    else
      silu_multiply(gate, up);
    multiply(batch, layer, tokens, gate, {{LayerWeight::down, normed}});
  }
}

/// The experts that the router chooses, from `normed` to `normed`.
void Transformer::State::run_sparse(const LayerWeights& layer) {
  layer.product(LayerWeight::router).apply(rows.normed, rows.router);
  rows.routes.choose(rows.router, {.experts = config.experts,
                                   .per_token = config.experts_per_token,
                                   .are_weights_normed = config.are_expert_weights_normed,
                                   .scale = config.routed_scale,
                                   .groups = config.expert_groups.count,
                                   .chosen_groups = config.expert_groups.chosen,
                                   .scores = config.expert_scores});
  run_experts(rows.routes, layer.experts, expert_shape(config), rows.normed, rows.experts,
              rows.mixed);
  if (config.shared_experts > 0) run_shared(layer);
  rows.normed.swap(rows.mixed);
}

/// The experts that compute every token, from `normed`; added to `mixed`.
void Transformer::State::run_shared(const LayerWeights& layer) {
  const Matmul::Output outputs[] = {{&layer.product(LayerWeight::shared_gate), rows.shared_gate},
                                    {&layer.product(LayerWeight::shared_up), rows.shared_up}};
  Matmul::apply_all(rows.normed, outputs);
  silu_multiply(rows.shared_gate, rows.shared_up);
  layer.product(LayerWeight::shared_down).apply(rows.shared_gate, rows.shared);
  add_in_place(rows.mixed, rows.shared);
}

void Transformer::State::project(std::span<const std::int32_t> wanted, std::span<float> logits) {
  const std::size_t width = config.hidden_size;
  rows.wanted.resize(wanted.size() * width);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto row = std::span(rows.hidden).subspan(wanted[i] * width, width);
    rms_norm(row, weights.final_norm, config.rms_norm_eps,
             std::span(rows.wanted).subspan(i * width, width));
  }
  weights.lm_head->apply(rows.wanted, logits);
  if (config.logit_soft_cap > 0) soft_cap(logits, config.logit_soft_cap);
}

Expected<Transformer> Transformer::load(
    const std::filesystem::path& directory,
    const std::function<void(std::size_t, std::size_t)>& progress, AttentionBackend attention) {
  auto config = load_model_config(directory);
  if (!config) return forward_error(config);
  auto weights = TransformerWeights::load(directory, *config, progress);
  if (!weights) return forward_error(weights);
  std::optional<Rope> sliding_rope;
  if (config->has_sliding_rope()) sliding_rope.emplace(config->head_size, config->rope.sliding);
  return Transformer(
      std::make_unique<State>(State{*config, std::move(*weights), Rope(*config),
                                    std::move(sliding_rope), attention, Activations{}}));
}

Transformer::Transformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

std::size_t Transformer::step_bytes(const ModelConfig& config, std::size_t tokens,
                                    std::size_t logit_rows) {
  std::size_t floats = 0;
  Activations::visit_sizes(config, tokens, logit_rows,
                           [&](Activations::Rows, std::size_t more) { floats += more; });
  if (config.experts > 0)
    floats += ExpertRows::most_floats(tokens, config.experts_per_token, expert_shape(config)) +
              tokens * config.experts;  // the router's probabilities
  return floats * sizeof(float);
}

std::size_t Transformer::private_weight_bytes() const {
  std::size_t bytes = state_->weights.private_bytes();
  for (const LoraAdapter& adapter : state_->adapters) bytes += adapter.bytes();
  return bytes;
}

const ModelConfig& Transformer::config() const { return state_->config; }

Expected<std::int32_t> Transformer::add_adapter(const std::filesystem::path& directory) {
  auto adapter = LoraAdapter::load(directory, state_->config);
  if (!adapter) return forward_error(adapter);
  state_->adapters.push_back(std::move(*adapter));
  return static_cast<std::int32_t>(state_->adapters.size()) - 1;
}

void Transformer::forward(const ForwardBatch& batch, std::byte* kv_base, const KvLayout& layout,
                          std::span<float> logits) {
  auto& state = *state_;
  const bool is_ungrouped = layout.layers == state.ungrouped.layers;
  const LayerGroups& groups = is_ungrouped ? state.ungrouped : state.grouped;
  check_batch(batch, state.config, groups, layout);
  KV_CHECK(logits.size() == batch.logit_rows.size() * state.config.vocab_size, logits.size(),
           batch.logit_rows.size());
  if (batch.tokens.empty()) return;
  state.rows.resize(state.config, batch.tokens.size(), batch.logit_rows.size());
  state.embed(batch);
  for (std::int32_t layer = 0; layer < state.config.layers; ++layer) {
    const auto [group, slot] = groups.places[layer];
    LayerWeights& weights = state.weights.layers[layer];
    if (state.config.is_latent())
      state.attend_latents(batch, weights, latent_view(kv_base, layout, slot), group);
    else
      state.attend(batch, layer, layer_view(kv_base, layout, slot), group);
    state.feed_forward(batch, weights);
  }
  state.project(batch.logit_rows, logits);
}

void Transformer::further_logits(std::span<const std::int32_t> rows, std::span<float> logits) {
  auto& state = *state_;
  const std::size_t tokens = state.rows.hidden.size() / state.config.hidden_size;
  KV_CHECK(logits.size() == rows.size() * state.config.vocab_size, logits.size(), rows.size());
  for (const std::int32_t row : rows)
    KV_CHECK(row >= 0 && static_cast<std::size_t>(row) < tokens, row, tokens);
  state.project(rows, logits);
}

}  // namespace kvhive
