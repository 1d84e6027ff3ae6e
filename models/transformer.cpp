#include "models/transformer.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "models/rope.hpp"
#include "models/row_ops.hpp"
#include "models/transformer_weights.hpp"

namespace kvhive {
namespace {

/// The intermediate rows of a step, kept between steps so that they are allocated once.
struct Activations {
  std::vector<float> hidden;  ///< [T, hidden], the residual stream
  std::vector<float> normed;  ///< [T, hidden]
  std::vector<float> q;       ///< [T, H, D]
  std::vector<float> k;       ///< [T, G, D]
  std::vector<float> v;       ///< [T, G, D]
  std::vector<float> heads;   ///< [T, H, D], attention's output
  std::vector<float> gate;    ///< [T, intermediate]
  std::vector<float> up;      ///< [T, intermediate]
  std::vector<float> wanted;  ///< [logit rows, hidden]
  RopeAngles angles;

  using Rows = std::vector<float> Activations::*;

  /// Calls `visit` with each of the rows and how many floats it needs.
  template <class Visit>
  static void visit_sizes(const ModelConfig& config, std::size_t tokens, std::size_t logit_rows,
                          const Visit& visit) {
    const std::size_t queries = tokens * config.heads * config.head_size;
    const std::size_t keys = tokens * config.kv_heads * config.head_size;
    for (const Rows rows : {&Activations::hidden, &Activations::normed})
      visit(rows, tokens * config.hidden_size);
    for (const Rows rows : {&Activations::q, &Activations::heads}) visit(rows, queries);
    for (const Rows rows : {&Activations::k, &Activations::v}) visit(rows, keys);
    for (const Rows rows : {&Activations::gate, &Activations::up})
      visit(rows, tokens * config.intermediate_size);
    visit(&Activations::wanted, logit_rows * config.hidden_size);
  }

  void resize(const ModelConfig& config, std::size_t tokens, std::size_t logit_rows) {
    visit_sizes(config, tokens, logit_rows,
                [this](Rows rows, std::size_t floats) { (this->*rows).resize(floats); });
  }
};

}  // namespace

struct Transformer::State {
  ModelConfig config;
  TransformerWeights weights;
  Rope rope;
  AttentionBackend attention;
  Activations rows;
  LayerGroups ungrouped = one_group(config);
  LayerGroups grouped = group_layers(config);

  void embed(const ForwardBatch& batch);
  void attend(const ForwardBatch& batch, const LayerWeights& layer, const PagedKv& kv,
              GroupId group, std::int32_t window);
  void feed_forward(const LayerWeights& layer);
  void project(const ForwardBatch& batch, std::span<float> logits);
};

void Transformer::State::embed(const ForwardBatch& batch) {
  const std::size_t width = config.hidden_size;
  for (std::size_t t = 0; t < batch.tokens.size(); ++t)
    read_floats(weights.embedding, batch.tokens[t] * width,
                std::span(rows.hidden).subspan(t * width, width));
  rope.angles(batch.positions, rows.angles);
}

void Transformer::State::attend(const ForwardBatch& batch, const LayerWeights& layer,
                                const PagedKv& kv, GroupId group, std::int32_t window) {
  rms_norm(rows.hidden, layer.norm(LayerWeight::input_norm), config.rms_norm_eps, rows.normed);
  layer.product(LayerWeight::q).apply(rows.normed, rows.q);
  layer.product(LayerWeight::k).apply(rows.normed, rows.k);
  layer.product(LayerWeight::v).apply(rows.normed, rows.v);
  if (config.has(LayerWeight::q_norm)) {
    rms_norm(rows.q, layer.norm(LayerWeight::q_norm), config.rms_norm_eps, rows.q);
    rms_norm(rows.k, layer.norm(LayerWeight::k_norm), config.rms_norm_eps, rows.k);
  }
  rope.rotate(rows.q, config.heads, rows.angles);
  rope.rotate(rows.k, config.kv_heads, rows.angles);

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
                    .window = window,
                    .scale = 1 / std::sqrt(static_cast<float>(config.head_size))});
  layer.product(LayerWeight::o).apply(rows.heads, rows.normed);
  add_in_place(rows.hidden, rows.normed);
}

void Transformer::State::feed_forward(const LayerWeights& layer) {
  rms_norm(rows.hidden, layer.norm(LayerWeight::post_attention_norm), config.rms_norm_eps,
           rows.normed);
  layer.product(LayerWeight::gate).apply(rows.normed, rows.gate);
  layer.product(LayerWeight::up).apply(rows.normed, rows.up);
  silu_multiply(rows.gate, rows.up);
  layer.product(LayerWeight::down).apply(rows.gate, rows.normed);
  add_in_place(rows.hidden, rows.normed);
}

void Transformer::State::project(const ForwardBatch& batch, std::span<float> logits) {
  const std::size_t width = config.hidden_size;
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const auto row = std::span(rows.hidden).subspan(batch.logit_rows[i] * width, width);
    rms_norm(row, weights.final_norm, config.rms_norm_eps,
             std::span(rows.wanted).subspan(i * width, width));
  }
  weights.lm_head->apply(rows.wanted, logits);
}

Expected<Transformer> Transformer::load(
    const std::filesystem::path& directory,
    const std::function<void(std::size_t, std::size_t)>& progress, AttentionBackend attention) {
  auto config = load_model_config(directory);
  if (!config) return forward_error(config);
  auto weights = TransformerWeights::load(directory, *config, progress);
  if (!weights) return forward_error(weights);
  return Transformer(std::make_unique<State>(
      State{*config, std::move(*weights), Rope(*config), attention, Activations{}}));
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
  return floats * sizeof(float);
}

const ModelConfig& Transformer::config() const { return state_->config; }

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
    state.attend(batch, state.weights.layers[layer], layer_view(kv_base, layout, slot), group,
                 state.config.window_of(layer));
    state.feed_forward(state.weights.layers[layer]);
  }
  state.project(batch, logits);
}

}  // namespace kvhive
