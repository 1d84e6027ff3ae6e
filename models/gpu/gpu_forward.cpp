#include "models/gpu/gpu_forward.hpp"

#include <algorithm>
#include <utility>

#include "models/rope.hpp"

namespace kvhive {

GpuForward::GpuForward(Device& device, const ModelConfig& config, const LayerGroups& groups,
                       const GpuLimits& limits, const std::byte* region, GpuAdapters adapters)
    : device_(device),
      config_(config),
      groups_(groups),
      limits_(limits),
      weights_(config),
      kinds_(attention_kinds(config, groups)),
      offsets_(config, groups, limits),
      region_(region),
      adapters_(std::move(adapters)),
      rotation_factor_(Rope(config).attention_factor()),
      sliding_rotation_factor_(config.has_sliding_rope()
                                   ? Rope(config.head_size, config.rope.sliding).attention_factor()
                                   : rotation_factor_) {}

PagedAttentionArgs GpuForward::attention_args(const PagedKv& kv, std::int32_t window) const {
  PagedAttentionArgs args;
  args.q = at(offsets_.q);
  args.kv = kv;
  args.out = at(offsets_.heads);
  args.H = config_.heads;
  args.q_dtype = config_.dtype;
  args.window = window;
  args.soft_cap = config_.attention_soft_cap;
  args.scale = config_.score_scale();
  return args;
}

PagedMlaArgs GpuForward::latent_args(const PagedLatents& kv) const {
  PagedMlaArgs args;
  args.q = at(offsets_.latents.row_q);
  args.kv = kv;
  args.out = at(offsets_.latents.attended);
  args.H = config_.heads;
  args.q_dtype = config_.dtype;
  args.scale = config_.score_scale();
  return args;
}

/// The cache of a layer; one of fp8 with the layer's scales.
PagedKv GpuForward::layer_kv(std::byte* kv_base, const KvLayout& layout, std::int32_t layer) const {
  PagedKv kv = layer_view(kv_base, layout, groups_.places[layer].slot);
  if (kv.dtype != Dtype::e4m3 && kv.dtype != Dtype::e5m2) return kv;
  // The kernels that read and write scales take one type; fixed ones are only read.
  auto* const scales = const_cast<float*>(f32_at(weights_.kv_scales)) + 2 * std::size_t(layer);
  kv.scales = {.k = scales, .v = scales + 1};
  return kv;
}

StepContext GpuForward::step_context(std::byte* kv_base, const KvLayout& layout) const {
  constexpr std::int32_t kNoWindow = 0;
  const PagedAttentionArgs attention =
      config_.is_latent() ? as_attention(latent_args(latent_view(kv_base, layout, 0)))
                          : attention_args(layer_kv(kv_base, layout, 0), kNoWindow);
  return {attention,
          kinds_,
          groups_.groups.count,
          limits_,
          floats_at(offsets_.attention_states),
          offsets_.most_states,
          kv_base,
          layout};
}

Expected<void> GpuForward::norm(const std::byte* delta, std::size_t weight, std::size_t out,
                                std::int32_t n) {
  return add_rms_norm_cuda({.residual = floats_at(offsets_.residual),
                            .delta = delta,
                            .weight = f32_at(weight),
                            .out = at(out),
                            .n = n,
                            .width = config_.hidden_size,
                            .eps = config_.rms_norm_eps,
                            .out_dtype = config_.dtype},
                           stream_);
}

Expected<void> GpuForward::norm_delta(std::size_t weight, std::int32_t n) {
  return add_rms_norm_cuda({.delta = at(offsets_.delta),
                            .weight = f32_at(weight),
                            .out = at(offsets_.delta),
                            .n = n,
                            .width = config_.hidden_size,
                            .eps = config_.rms_norm_eps},
                           stream_);
}

Expected<void> GpuForward::norm_rows(std::size_t from, std::int64_t stride, std::size_t weight,
                                     std::int32_t width, std::size_t out, Dtype out_dtype,
                                     std::int32_t n) {
  return add_rms_norm_cuda({.delta = at(from),
                            .weight = f32_at(weight),
                            .out = at(out),
                            .n = n,
                            .width = width,
                            .eps = kLatentEps,
                            .out_dtype = out_dtype,
                            .delta_stride = stride},
                           stream_);
}

Expected<void> GpuForward::multiply(std::size_t x, const GpuMatrix& matrix, std::size_t y,
                                    std::int32_t T, Dtype out) {
  const auto fill = [&]<class Args>(Args args) {
    args.x = at(x);
    args.w = region_ + matrix.weights;
    args.bias = matrix.bias == kNoTensor ? nullptr : region_ + matrix.bias;
    args.y = at(y);
    args.T = T;
    args.N = matrix.N;
    args.K = matrix.K;
    args.dtype = config_.dtype;
    args.out_dtype = out;
    return args;
  };
  return limits_.is_batch_invariant ? row_product_cuda(fill(RowProductArgs{}), stream_)
                                    : device_.multiply(fill(DeviceProductArgs{}), stream_);
}

Expected<void> GpuForward::adapt(const GpuStep& step, const GpuLayer& layer, LayerWeight weight,
                                 std::size_t x, std::int32_t in, const Rows& y, std::int32_t out) {
  if (step.adapters == nullptr) return {};
  const auto matrices =
      adapters_.beside(static_cast<std::int32_t>(&layer - weights_.layers.data()), weight);
  if (!matrices) return {};
  return adapter_product_cuda(
      {.x = at(x),
       .base = region_,
       .matrices = reinterpret_cast<const AdapterMatrices*>(region_ + *matrices),
       .adapters = step.adapters,
       .narrow = floats_at(offsets_.narrow),
       .y = at(y.at),
       .T = step.T,
       .N = out,
       .K = in,
       .R = limits_.adapter_rank,
       .y_stride = y.stride,
       .dtype = config_.dtype,
       .out_dtype = y.dtype},
      stream_);
}

Expected<void> GpuForward::multiply_adapted(const GpuStep& step, const GpuLayer& layer,
                                            LayerWeight weight, std::size_t x, std::size_t y,
                                            Dtype out) {
  const GpuMatrix& matrix = layer.product(weight);
  return multiply(x, matrix, y, step.T, out).and_then([&] {
    return adapt(step, layer, weight, x, matrix.K, {y, out}, matrix.N);
  });
}

Expected<void> GpuForward::multiply_heads(RowProductArgs args) {
  args.batch = config_.heads;
  args.x_stride *= config_.heads;
  args.y_stride *= config_.heads;
  args.dtype = args.out_dtype = config_.dtype;
  return row_product_cuda(args, stream_);
}

Expected<void> GpuForward::project_heads(const GpuStep& step, const GpuLayer& layer,
                                         std::int32_t index) {
  return multiply_adapted(step, layer, LayerWeight::q, offsets_.normed, offsets_.q)
      .and_then([&] {
        return multiply_adapted(step, layer, LayerWeight::k, offsets_.normed, offsets_.k);
      })
      .and_then([&] {
        return multiply_adapted(step, layer, LayerWeight::v, offsets_.normed, offsets_.v);
      })
      .and_then([&] {
        if (!config_.is_rotated(index)) return tune_queries(step);
        if (config_.architecture->rotated_pairs == RotatedPairs::neighbours)
          return rotate_neighbours(step);
        return rotate_halves(step, layer, config_.window_of(index) > 0);
      });
}

Expected<void> GpuForward::rotate_halves(const GpuStep& step, const GpuLayer& layer,
                                         bool has_window) {
  const bool turns_otherwise = has_window && config_.has_sliding_rope();
  return rotate_cuda(
      {.q = at(offsets_.q),
       .k = at(offsets_.k),
       .positions = step.positions,
       .frequencies = f32_at(turns_otherwise ? weights_.sliding_frequencies : weights_.frequencies),
       .q_norm = f32_at(layer.norm(LayerWeight::q_norm)),
       .k_norm = f32_at(layer.norm(LayerWeight::k_norm)),
       .T = step.T,
       .H = config_.heads,
       .G = config_.kv_heads,
       .D = config_.head_size,
       .eps = config_.rms_norm_eps,
       .dtype = config_.dtype,
       .factor = turns_otherwise ? sliding_rotation_factor_ : rotation_factor_},
      stream_);
}

Expected<void> GpuForward::rotate_neighbours(const GpuStep& step) {
  Expected<void> queued;
  for (const auto& [offset, heads] :
       {std::pair{offsets_.q, config_.heads}, {offsets_.k, config_.kv_heads}}) {
    if (queued)
      queued = rotate_pairs_cuda({.from = at(offset),
                                  .to = at(offset),
                                  .positions = step.positions,
                                  .frequencies = f32_at(weights_.frequencies),
                                  .T = step.T,
                                  .H = heads,
                                  .D = config_.head_size,
                                  .from_stride = config_.head_size,
                                  .to_stride = config_.head_size,
                                  .dtype = config_.dtype,
                                  .factor = rotation_factor_},
                                 stream_);
    if (queued && config_.has_l2_norms)
      queued = add_rms_norm_cuda({.delta = at(offset),
                                  .weight = f32_at(weights_.ones),
                                  .out = at(offset),
                                  .n = step.T * heads,
                                  .width = config_.head_size,
                                  .eps = config_.rms_norm_eps,
                                  .delta_dtype = config_.dtype,
                                  .out_dtype = config_.dtype},
                                 stream_);
  }
  return queued;
}

Expected<void> GpuForward::tune_queries(const GpuStep& step) {
  const auto [floor, scale] = config_.query_tuning;
  if (floor == 0) return {};
  return tune_queries_cuda({.q = at(offsets_.q),
                            .positions = step.positions,
                            .T = step.T,
                            .width = config_.heads * config_.head_size,
                            .floor = static_cast<float>(floor),
                            .scale = static_cast<float>(scale),
                            .dtype = config_.dtype},
                           stream_);
}

template <class Args, class Kernel>
Expected<void> GpuForward::queue_attention(const GpuStep& step, const AttentionKind& kind,
                                           Args args, Kernel kernel) {
  const auto place = std::ranges::find(kinds_, kind) - kinds_.begin();
  args.block_table = step.tables[place].entries;
  args.B = step.tables[place].B;
  args.M = step.tables[place].M;
  Expected<void> queued;
  for (const AttentionWork& work : step.attention[place])
    if (queued) queued = kernel(args, work, stream_);
  return queued;
}

Expected<void> GpuForward::attend(const GpuStep& step, const PagedKv& kv,
                                  const AttentionKind& kind) {
  Expected<void> queued = cache_write_cuda({.k = at(offsets_.k),
                                            .v = at(offsets_.v),
                                            .slot_mapping = step.slot_mapping[kind.group.value],
                                            .kv = kv,
                                            .T = step.T,
                                            .in_dtype = config_.dtype},
                                           stream_);
  return queued.and_then([&] {
    return queue_attention(step, kind, attention_args(kv, kind.window), paged_attention_cuda);
  });
}

/// Queries as the rows of the cache are compared with them: W_UK absorbed, the rope part rotated.
Expected<void> GpuForward::project_latent_queries(const GpuStep& step, const GpuLayer& layer) {
  const LatentShape& shape = config_.latent;
  const auto& buffers = offsets_.latents;
  Expected<void> queued;
  if (shape.query_rank > 0)
    queued =
        multiply_adapted(step, layer, LayerWeight::q_a, offsets_.normed, buffers.unnormed_q,
                         Dtype::f32)
            .and_then([&] {
              return norm_rows(buffers.unnormed_q, shape.query_rank,
                               layer.norm(LayerWeight::q_a_norm), shape.query_rank,
                               buffers.narrow_q, config_.dtype, step.T);
            })
            .and_then([&] {
              return multiply_adapted(step, layer, LayerWeight::q_b, buffers.narrow_q, offsets_.q);
            });
  else
    queued = multiply_adapted(step, layer, LayerWeight::q, offsets_.normed, offsets_.q);
  const std::size_t element = bytes_of(config_.dtype);
  return queued
      .and_then([&] {
        return multiply_heads({.x = at(offsets_.q),
                               .w = region_ + layer.to_latent,
                               .y = at(buffers.row_q),
                               .T = step.T,
                               .N = shape.rank,
                               .K = shape.nope,
                               .x_stride = shape.query(),
                               .y_stride = shape.row(),
                               .x_step = shape.query(),
                               .w_step = std::int64_t{shape.rank} * shape.nope,
                               .y_step = shape.row()});
      })
      .and_then([&] {
        return rotate_pairs_cuda({.from = at(offsets_.q) + shape.nope * element,
                                  .to = at(buffers.row_q) + shape.rank * element,
                                  .positions = step.positions,
                                  .frequencies = f32_at(weights_.frequencies),
                                  .T = step.T,
                                  .H = config_.heads,
                                  .D = shape.rope,
                                  .from_stride = shape.query(),
                                  .to_stride = shape.row(),
                                  .dtype = config_.dtype,
                                  .factor = rotation_factor_},
                                 stream_);
      });
}

/// The latent and the key that the cache keeps of each token.
Expected<void> GpuForward::project_latent_rows(const GpuStep& step, const GpuLayer& layer) {
  const LatentShape& shape = config_.latent;
  const auto& buffers = offsets_.latents;
  return multiply_adapted(step, layer, LayerWeight::kv_a, offsets_.normed, buffers.kv_row,
                          Dtype::f32)
      .and_then([&] {
        return norm_rows(buffers.kv_row, shape.row(), layer.norm(LayerWeight::kv_a_norm),
                         shape.rank, buffers.latent, Dtype::f32, step.T);
      })
      .and_then([&] {
        return rotate_pairs_cuda({.from = floats_at(buffers.kv_row) + shape.rank,
                                  .to = at(buffers.shared_key),
                                  .positions = step.positions,
                                  .frequencies = f32_at(weights_.frequencies),
                                  .T = step.T,
                                  .H = 1,
                                  .D = shape.rope,
                                  .from_stride = shape.row(),
                                  .to_stride = shape.rope,
                                  .dtype = Dtype::f32,
                                  .factor = rotation_factor_},
                                 stream_);
      });
}

Expected<void> GpuForward::attend_latents(const GpuStep& step, const GpuLayer& layer,
                                          const PagedLatents& kv, const AttentionKind& kind) {
  const LatentShape& shape = config_.latent;
  const auto& buffers = offsets_.latents;
  Expected<void> queued = mla_write_cuda({.latent = at(buffers.latent),
                                          .rope = at(buffers.shared_key),
                                          .slot_mapping = step.slot_mapping[kind.group.value],
                                          .kv = kv,
                                          .T = step.T,
                                          .in_dtype = Dtype::f32},
                                         stream_);
  queued =
      queued.and_then([&] { return queue_attention(step, kind, latent_args(kv), paged_mla_cuda); });
  const std::size_t key_half =
      std::size_t(shape.nope) * std::size_t(shape.rank) * bytes_of(config_.dtype);
  return queued.and_then([&] {
    return multiply_heads({.x = at(buffers.attended),
                           .w = region_ + layer.product(LayerWeight::kv_b).weights + key_half,
                           .y = at(offsets_.heads),
                           .T = step.T,
                           .N = shape.value,
                           .K = shape.rank,
                           .x_stride = shape.rank,
                           .y_stride = shape.value,
                           .x_step = shape.rank,
                           .w_step = std::int64_t{shape.nope + shape.value} * shape.rank,
                           .y_step = shape.value});
  });
}

Expected<void> GpuForward::gate(std::int32_t rows, std::int32_t inner, bool has_weighted_inputs) {
  const std::byte* const gate = at(offsets_.gate_up);
  const bool is_gemma = config_.architecture->family == Family::gemma;
  return gate_multiply_cuda(
      {.gate = gate,
       .up = gate + std::size_t(inner) * bytes_of(config_.dtype),
       .out = at(offsets_.inner),
       .T = rows,
       .I = inner,
       .in_stride = 2 * std::int64_t{inner},
       .dtype = config_.dtype,
       .activation = is_gemma ? Activation::gelu : Activation::silu,
       .weights = has_weighted_inputs ? floats_at(offsets_.experts.weights) : nullptr,
       .pairs = has_weighted_inputs ? numbers_at(offsets_.experts.pairs) : nullptr},
      stream_);
}

Expected<void> GpuForward::run_dense(const GpuStep& step, const GpuLayer& layer) {
  const std::int32_t inner = layer.product(LayerWeight::down).K;
  // One product gives both halves of a row of gate_up.
  const auto adapt_half = [&](LayerWeight weight, std::size_t half) {
    const std::size_t begin = half * std::size_t(inner) * bytes_of(config_.dtype);
    return adapt(step, layer, weight, offsets_.normed, config_.hidden_size,
                 {offsets_.gate_up + begin, config_.dtype, 2 * std::int64_t{inner}}, inner);
  };
  return multiply(offsets_.normed, layer.product(LayerWeight::gate), offsets_.gate_up, step.T,
                  config_.dtype)
      .and_then([&] { return adapt_half(LayerWeight::gate, 0); })
      .and_then([&] { return adapt_half(LayerWeight::up, 1); })
      .and_then([&] { return gate(step.T, inner); })
      .and_then([&] {
        return multiply_adapted(step, layer, LayerWeight::down, offsets_.inner, offsets_.delta,
                                Dtype::f32);
      });
}

Expected<void> GpuForward::run_shared(const GpuStep& step, const GpuLayer& layer) {
  const GpuMatrix& down = layer.product(LayerWeight::shared_down);
  return multiply(offsets_.normed, layer.product(LayerWeight::shared_gate), offsets_.gate_up,
                  step.T, config_.dtype)
      .and_then([&] { return gate(step.T, down.K); })
      .and_then([&] { return multiply(offsets_.inner, down, offsets_.delta, step.T, Dtype::f32); });
}

/// Which experts compute each token, and the tokens of each expert.
Expected<void> GpuForward::choose_experts(const GpuStep& step, const GpuLayer& layer) {
  const auto& buffers = offsets_.experts;
  auto* const chosen = numbers_at(buffers.chosen);
  return multiply(offsets_.normed, layer.product(LayerWeight::router), buffers.router, step.T,
                  Dtype::f32)
      .and_then([&] {
        return choose_experts_cuda({.logits = floats_at(buffers.router),
                                    .experts = chosen,
                                    .weights = floats_at(buffers.weights),
                                    .T = step.T,
                                    .E = config_.experts,
                                    .k = config_.experts_per_token,
                                    .are_weights_normed = config_.are_expert_weights_normed,
                                    .are_sigmoids = config_.expert_scores == ExpertScores::sigmoid,
                                    .scale = config_.routed_scale,
                                    .groups = config_.expert_groups.count,
                                    .chosen_groups = config_.expert_groups.chosen},
                                   stream_);
      })
      .and_then([&] {
        return sort_by_expert_cuda({.experts = chosen,
                                    .pairs = numbers_at(buffers.pairs),
                                    .places = numbers_at(buffers.places),
                                    .first = numbers_at(buffers.first),
                                    .T = step.T,
                                    .E = config_.experts,
                                    .k = config_.experts_per_token},
                                   stream_);
      });
}

Expected<void> GpuForward::run_experts(const GpuStep& step, const GpuLayer& layer) {
  const auto& buffers = offsets_.experts;
  const auto product = [&](LayerWeight weight) {
    const GpuMatrix& matrix = layer.product(weight);
    return ExpertProductArgs{.w = region_ + matrix.weights,
                             .first = numbers_at(buffers.first),
                             .rows = step.T * config_.experts_per_token,
                             .k = config_.experts_per_token,
                             .E = config_.experts,
                             .N = matrix.N,
                             .K = matrix.K,
                             .w_step = layer.expert_step,
                             .dtype = config_.dtype,
                             .out_dtype = config_.dtype};
  };
  const bool has_shared = config_.shared_experts > 0;
  const bool has_weighted_inputs = config_.expert_scores == ExpertScores::sigmoid;
  return choose_experts(step, layer)
      .and_then([&] {
        if (!has_shared) return Expected<void>{};
        return run_shared(step, layer);
      })
      .and_then([&] {
        ExpertProductArgs args = product(LayerWeight::expert_gate);
        args.x = at(offsets_.normed);
        args.y = at(offsets_.gate_up);
        args.pairs = numbers_at(buffers.pairs);
        return expert_product_cuda(args, stream_);
      })
      .and_then([&] {
        return gate(step.T * config_.experts_per_token, config_.expert_inner, has_weighted_inputs);
      })
      .and_then([&] {
        ExpertProductArgs args = product(LayerWeight::expert_down);
        args.x = at(offsets_.inner);
        args.y = at(buffers.out);
        return expert_product_cuda(args, stream_);
      })
      .and_then([&] {
        return mix_experts_cuda(
            {.y = at(buffers.out),
             .weights = has_weighted_inputs ? nullptr : floats_at(buffers.weights),
             .places = numbers_at(buffers.places),
             .out = floats_at(offsets_.delta),
             .T = step.T,
             .k = config_.experts_per_token,
             .width = config_.hidden_size,
             .adds_to_out = has_shared,
             .dtype = config_.dtype},
            stream_);
      });
}

/// From the residual to `delta`.
Expected<void> GpuForward::run_attention(const GpuStep& step, std::int32_t index,
                                         std::byte* kv_base, const KvLayout& layout) {
  const GpuLayer& layer = weights_.layers[index];
  const AttentionKind kind = attention_kind(config_, groups_, index);
  const auto attended = [&] {
    if (config_.is_latent())
      return project_latent_queries(step, layer)
          .and_then([&] { return project_latent_rows(step, layer); })
          .and_then([&] {
            return attend_latents(step, layer,
                                  latent_view(kv_base, layout, groups_.places[index].slot), kind);
          });
    return project_heads(step, layer, index).and_then([&] {
      return attend(step, layer_kv(kv_base, layout, index), kind);
    });
  };
  auto queued = norm(index == 0 ? nullptr : at(offsets_.delta), layer.norm(LayerWeight::input_norm),
                     offsets_.normed, step.T)
                    .and_then(attended)
                    .and_then([&] {
                      return multiply_adapted(step, layer, LayerWeight::o, offsets_.heads,
                                              offsets_.delta, Dtype::f32);
                    });
  if (!queued || !config_.has_norms_behind()) return queued;
  return norm_delta(layer.norm(LayerWeight::post_attention_norm), step.T);
}

/// From the residual and `delta`, which is added to it, to `delta`.
Expected<void> GpuForward::run_feed_forward(const GpuStep& step, std::int32_t index) {
  const GpuLayer& layer = weights_.layers[index];
  const bool has_behind = config_.has_norms_behind();
  auto queued = norm(at(offsets_.delta),
                     layer.norm(has_behind ? LayerWeight::pre_feedforward_norm
                                           : LayerWeight::post_attention_norm),
                     offsets_.normed, step.T)
                    .and_then([&] {
                      if (config_.is_sparse(index)) return run_experts(step, layer);
                      return run_dense(step, layer);
                    });
  if (!queued || !has_behind) return queued;
  return norm_delta(layer.norm(LayerWeight::post_feedforward_norm), step.T);
}

Expected<void> GpuForward::project(const std::int32_t* rows, std::int32_t n) {
  auto queued =
      add_rms_norm_cuda({.residual = floats_at(offsets_.residual),
                         .delta = at(offsets_.delta),
                         .weight = f32_at(weights_.final_norm),
                         .out = at(offsets_.wanted),
                         .rows = rows,
                         .n = n,
                         .width = config_.hidden_size,
                         .eps = config_.rms_norm_eps,
                         .out_dtype = config_.dtype},
                        stream_)
          .and_then([&] {
            return multiply(offsets_.wanted, weights_.lm_head, offsets_.logits, n, Dtype::f32);
          });
  if (!queued || config_.logit_soft_cap <= 0) return queued;
  return soft_cap_cuda({.values = floats_at(offsets_.logits),
                        .count = std::int64_t{n} * config_.vocab_size,
                        .cap = config_.logit_soft_cap},
                       stream_);
}

Expected<void> GpuForward::choose(const GpuStep& step) {
  if (step.n == 0) return {};
  const OutputParts outputs = output_parts(at(offsets_.outputs), step.n, step.K);
  return project(step.logit_rows, step.n).and_then([&] {
    return sample_cuda({.logits = floats_at(offsets_.logits),
                        .choices = step.choices,
                        .tokens = outputs.tokens,
                        .logprobs = outputs.logprobs,
                        .likeliest_tokens = outputs.likeliest,
                        .likeliest_logprobs = outputs.likeliest_logprobs,
                        .n = step.n,
                        .vocab = config_.vocab_size,
                        .K = step.K},
                       stream_);
  });
}

Expected<void> GpuForward::compute(const GpuStep& step, std::byte* kv_base, const KvLayout& layout,
                                   const BeforeLayer& before_layer) {
  auto queued = embed_cuda({.table = region_ + weights_.embedding,
                            .tokens = step.tokens,
                            .out = floats_at(offsets_.residual),
                            .T = step.T,
                            .width = config_.hidden_size,
                            .dtype = config_.dtype,
                            .scale = config_.embedding_scale(config_.dtype)},
                           stream_);
  for (const EmbeddedRow& given : step.embedded)
    if (queued)
      queued = device_.copy(
          reinterpret_cast<std::byte*>(floats_at(offsets_.residual) +
                                       given.row * static_cast<std::size_t>(config_.hidden_size)),
          reinterpret_cast<const std::byte*>(given.values.data()), given.values.size_bytes(),
          stream_);
  for (std::int32_t layer = 0; layer < config_.layers && queued; ++layer) {
    if (before_layer) queued = before_layer(groups_.places[layer].slot);
    if (queued) queued = run_attention(step, layer, kv_base, layout);
    if (queued) queued = run_feed_forward(step, layer);
  }
  return queued.and_then([&] { return choose(step); });
}

}  // namespace kvhive
