#include "models/gpu/gpu_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/round_up.hpp"
#include "device/device_memory.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "models/gpu/decode_graphs.hpp"
#include "models/gpu/gpu_buffer_offsets.hpp"
#include "models/gpu/gpu_step.hpp"
#include "models/gpu/gpu_support.hpp"
#include "models/gpu/gpu_weights.hpp"

namespace kvhive {
namespace {

void check_limits(const ForwardBatch& batch, std::span<const SampleChoice> choices,
                  const GpuLimits& limits) {
  KV_CHECK(batch.tokens.size() <= std::size_t(limits.tokens), batch.tokens.size(), limits.tokens);
  KV_CHECK(batch.kv_len.size() <= std::size_t(limits.sequences), batch.kv_len.size(),
           limits.sequences);
  KV_CHECK(batch.logit_rows.size() <= std::size_t(limits.logit_rows), batch.logit_rows.size(),
           limits.logit_rows);
  KV_CHECK(batch.max_blocks <= limits.blocks, batch.max_blocks, limits.blocks);
  KV_CHECK(choices.size() == batch.logit_rows.size(), choices.size(), batch.logit_rows.size());
  for (const std::int32_t tokens : batch.kv_len)
    KV_CHECK(tokens <= limits.kv_tokens, tokens, limits.kv_tokens);
  for (const SampleChoice& choice : choices)
    KV_CHECK(choice.likeliest >= 0 && choice.likeliest <= limits.likeliest, choice.likeliest);
}

}  // namespace

struct GpuTransformer::State {
  State(Device& of, const ModelConfig& model, const std::byte* mapped, const GpuLimits& most,
        const LayerGroups& layer_groups)
      : device(of),
        config(model),
        groups(layer_groups),
        limits(most),
        weights(model),
        kinds(attention_kinds(model, layer_groups)),
        offsets(model, layer_groups, most),
        region(mapped),
        graphs(of, most.graphs) {}
  ~State() {
    if (is_under_way) (void)stream.finish();  // queued work uses the memory that is freed now
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device& device;
  ModelConfig config;
  LayerGroups groups;
  GpuLimits limits;
  GpuWeights weights;  ///< offsets in the region of weights
  std::vector<AttentionKind> kinds;
  GpuBufferOffsets offsets;  ///< in `memory`
  const std::byte* region;
  DeviceBuffer memory;
  StagingBuffer staging;  ///< a step's inputs, then its outputs
  OrderedStream stream;
  DecodeGraphs graphs;
  bool is_under_way = false;
  struct {
    std::int32_t wanted_rows = 0;
    std::int32_t padded_rows = 0, K = 0;  ///< of the outputs in `staging`
  } last_step;

  std::byte* host_outputs() const {
    return staging.data() + round_up(offsets.input_bytes(), kInputAlignment);
  }
  std::byte* at(std::size_t room) const { return memory.data() + room; }
  float* floats_at(std::size_t room) const { return reinterpret_cast<float*>(at(room)); }
  const float* f32_at(std::size_t offset) const {
    return offset == kNoTensor ? nullptr : reinterpret_cast<const float*>(region + offset);
  }

  StepContext step_context(std::byte* kv_base, const KvLayout& layout) const;
  PagedAttentionArgs attention_args(const PagedKv& kv, std::int32_t window) const;

  Expected<void> enqueue(const GpuStep& step, std::size_t input_bytes, std::byte* kv_base,
                         const KvLayout& layout, const BeforeLayer& before_layer);
  Expected<void> compute(const GpuStep& step, std::byte* kv_base, const KvLayout& layout,
                         const BeforeLayer& before_layer);
  /// Normalises all n rows, or the n rows that `rows` names.
  Expected<void> norm(const std::byte* delta, std::size_t weight, std::size_t out, std::int32_t n,
                      const std::int32_t* of_rows = nullptr);
  Expected<void> multiply(std::size_t x, const GpuMatrix& matrix, std::size_t y, std::int32_t T,
                          Dtype out);
  Expected<void> project_heads(const GpuStep& step, const GpuLayer& layer);
  Expected<void> attend(const GpuStep& step, const PagedKv& kv, const AttentionKind& kind);
  Expected<void> feed_forward(const GpuStep& step, const GpuLayer& layer);
  Expected<void> run_layer(const GpuStep& step, std::int32_t index, const PagedKv& kv);
  Expected<void> choose(const GpuStep& step);
};

PagedAttentionArgs GpuTransformer::State::attention_args(const PagedKv& kv,
                                                         std::int32_t window) const {
  PagedAttentionArgs args;
  args.q = at(offsets.q);
  args.kv = kv;
  args.out = at(offsets.heads);
  args.H = config.heads;
  args.q_dtype = config.dtype;
  args.window = window;
  args.scale = 1 / std::sqrt(static_cast<float>(config.head_size));
  return args;
}

StepContext GpuTransformer::State::step_context(std::byte* kv_base, const KvLayout& layout) const {
  constexpr std::int32_t kNoWindow = 0;
  return {attention_args(layer_view(kv_base, layout, 0), kNoWindow),
          kinds,
          groups.groups.count,
          limits,
          floats_at(offsets.attention_states),
          offsets.most_states,
          kv_base,
          layout};
}

Expected<void> GpuTransformer::State::norm(const std::byte* delta, std::size_t weight,
                                           std::size_t out, std::int32_t n,
                                           const std::int32_t* of_rows) {
  return add_rms_norm_cuda({.residual = floats_at(offsets.residual),
                            .delta = delta,
                            .weight = f32_at(weight),
                            .out = at(out),
                            .rows = of_rows,
                            .n = n,
                            .width = config.hidden_size,
                            .eps = config.rms_norm_eps,
                            .delta_dtype = Dtype::f32,
                            .out_dtype = config.dtype},
                           stream.handle());
}

Expected<void> GpuTransformer::State::multiply(std::size_t x, const GpuMatrix& matrix,
                                               std::size_t y, std::int32_t T, Dtype out) {
  const auto fill = [&]<class Args>(Args args) {
    args.x = at(x);
    args.w = region + matrix.weights;
    args.bias = matrix.bias == kNoTensor ? nullptr : region + matrix.bias;
    args.y = at(y);
    args.T = T;
    args.N = matrix.N;
    args.K = matrix.K;
    args.dtype = config.dtype;
    args.out_dtype = out;
    return args;
  };
  return limits.is_batch_invariant ? row_product_cuda(fill(RowProductArgs{}), stream.handle())
                                   : device.multiply(fill(ProductArgs{}), stream.handle());
}

Expected<void> GpuTransformer::State::project_heads(const GpuStep& step, const GpuLayer& layer) {
  const auto project = [&](const GpuMatrix& matrix, std::size_t to) {
    return multiply(offsets.normed, matrix, to, step.T, config.dtype);
  };
  return project(layer.product(LayerWeight::q), offsets.q)
      .and_then([&] { return project(layer.product(LayerWeight::k), offsets.k); })
      .and_then([&] { return project(layer.product(LayerWeight::v), offsets.v); })
      .and_then([&] {
        return rotate_cuda({.q = at(offsets.q),
                            .k = at(offsets.k),
                            .positions = step.positions,
                            .frequencies = f32_at(weights.frequencies),
                            .q_norm = f32_at(layer.norm(LayerWeight::q_norm)),
                            .k_norm = f32_at(layer.norm(LayerWeight::k_norm)),
                            .T = step.T,
                            .H = config.heads,
                            .G = config.kv_heads,
                            .D = config.head_size,
                            .eps = config.rms_norm_eps,
                            .dtype = config.dtype},
                           stream.handle());
      });
}

Expected<void> GpuTransformer::State::attend(const GpuStep& step, const PagedKv& kv,
                                             const AttentionKind& kind) {
  Expected<void> queued = cache_write_cuda({.k = at(offsets.k),
                                            .v = at(offsets.v),
                                            .slot_mapping = step.slot_mapping[kind.group.value],
                                            .kv = kv,
                                            .T = step.T,
                                            .in_dtype = config.dtype},
                                           stream.handle());
  PagedAttentionArgs args = attention_args(kv, kind.window);
  args.block_table = step.block_table[kind.group.value];
  args.B = step.B;
  args.M = step.M;
  const auto place = std::ranges::find(kinds, kind) - kinds.begin();
  for (const AttentionWork& work : step.attention[place])
    if (queued) queued = paged_attention_cuda(args, work, stream.handle());
  return queued;
}

Expected<void> GpuTransformer::State::feed_forward(const GpuStep& step, const GpuLayer& layer) {
  const std::size_t inner = config.intermediate_size;
  return multiply(offsets.normed, layer.product(LayerWeight::gate), offsets.gate_up, step.T,
                  config.dtype)
      .and_then([&] {
        const std::byte* gate = at(offsets.gate_up);
        return silu_multiply_cuda({.gate = gate,
                                   .up = gate + inner * bytes_of(config.dtype),
                                   .out = at(offsets.inner),
                                   .T = step.T,
                                   .I = config.intermediate_size,
                                   .in_stride = 2 * config.intermediate_size,
                                   .dtype = config.dtype},
                                  stream.handle());
      })
      .and_then([&] {
        return multiply(offsets.inner, layer.product(LayerWeight::down), offsets.delta, step.T,
                        Dtype::f32);
      });
}

/// Leaves in `delta` what the layer adds to the residual; the next norm adds it.
Expected<void> GpuTransformer::State::run_layer(const GpuStep& step, std::int32_t index,
                                                const PagedKv& kv) {
  const GpuLayer& layer = weights.layers[index];
  return norm(index == 0 ? nullptr : at(offsets.delta), layer.norm(LayerWeight::input_norm),
              offsets.normed, step.T)
      .and_then([&] { return project_heads(step, layer); })
      .and_then([&] {
        return attend(step, kv, {groups.places[index].group, config.window_of(index)});
      })
      .and_then([&] {
        return multiply(offsets.heads, layer.product(LayerWeight::o), offsets.delta, step.T,
                        Dtype::f32);
      })
      .and_then([&] {
        return norm(at(offsets.delta), layer.norm(LayerWeight::post_attention_norm), offsets.normed,
                    step.T);
      })
      .and_then([&] { return feed_forward(step, layer); });
}

Expected<void> GpuTransformer::State::choose(const GpuStep& step) {
  if (step.n == 0) return {};
  const OutputParts outputs = output_parts(at(offsets.outputs), step.n, step.K);
  return norm(at(offsets.delta), weights.final_norm, offsets.wanted, step.n, step.logit_rows)
      .and_then([&] {
        return multiply(offsets.wanted, weights.lm_head, offsets.logits, step.n, Dtype::f32);
      })
      .and_then([&] {
        return sample_cuda({.logits = floats_at(offsets.logits),
                            .choices = step.choices,
                            .tokens = outputs.tokens,
                            .logprobs = outputs.logprobs,
                            .likeliest_tokens = outputs.likeliest,
                            .likeliest_logprobs = outputs.likeliest_logprobs,
                            .n = step.n,
                            .vocab = config.vocab_size,
                            .K = step.K},
                           stream.handle());
      })
      .and_then([&] {
        return device.copy(host_outputs(), at(offsets.outputs), output_bytes(step.n, step.K),
                           stream.handle());
      });
}

Expected<void> GpuTransformer::State::enqueue(const GpuStep& step, std::size_t input_bytes,
                                              std::byte* kv_base, const KvLayout& layout,
                                              const BeforeLayer& before_layer) {
  if (step.T == 0) return {};
  auto copied = device.copy(at(offsets.inputs), staging.data(), input_bytes, stream.handle());
  if (!copied) return copied;
  const auto queue = [&] { return compute(step, kv_base, layout, before_layer); };
  // A step that waits for its swap-ins layer by layer cannot be a graph: the waits are its own.
  if (!step.shape || before_layer) return queue();
  return graphs.run(*step.shape, stream.handle(), queue);
}

/// Queues everything after the copy of the inputs.
Expected<void> GpuTransformer::State::compute(const GpuStep& step, std::byte* kv_base,
                                              const KvLayout& layout,
                                              const BeforeLayer& before_layer) {
  auto queued = embed_cuda({.table = region + weights.embedding,
                            .tokens = step.tokens,
                            .out = floats_at(offsets.residual),
                            .T = step.T,
                            .width = config.hidden_size,
                            .dtype = config.dtype},
                           stream.handle());
  for (std::int32_t layer = 0; layer < config.layers && queued; ++layer) {
    const std::int32_t slot = groups.places[layer].slot;
    if (before_layer) queued = before_layer(slot);
    if (queued) queued = run_layer(step, layer, layer_view(kv_base, layout, slot));
  }
  return queued.and_then([&] { return choose(step); });
}

std::size_t GpuTransformer::device_bytes(const ModelConfig& config, const GpuLimits& limits,
                                         const LayerGroups& groups) {
  return GpuBufferOffsets(config, groups, limits).bytes;
}

Expected<GpuTransformer> GpuTransformer::create(Device& device, const ModelConfig& config,
                                                const std::byte* weights, const GpuLimits& limits,
                                                const LayerGroups& groups) {
  if (auto supported = check_gpu_model(config); !supported) return forward_error(supported);
  auto state = std::make_unique<State>(device, config, weights, limits, groups);
  auto memory = DeviceBuffer::allocate(device, state->offsets.bytes);
  if (!memory) return forward_error(memory);
  state->memory = std::move(*memory);
  const std::size_t staging_bytes = round_up(state->offsets.input_bytes(), kInputAlignment) +
                                    output_bytes(limits.logit_rows, limits.likeliest);
  auto staging = StagingBuffer::allocate(device, staging_bytes);
  if (!staging) return forward_error(staging);
  state->staging = std::move(*staging);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  state->stream = std::move(*stream);
  return GpuTransformer(std::move(state));
}

GpuTransformer::GpuTransformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
GpuTransformer::GpuTransformer(GpuTransformer&&) noexcept = default;
GpuTransformer& GpuTransformer::operator=(GpuTransformer&&) noexcept = default;
GpuTransformer::~GpuTransformer() = default;

const ModelConfig& GpuTransformer::config() const { return state_->config; }
const OrderedStream& GpuTransformer::stream() const { return state_->stream; }
const float* GpuTransformer::logits() const { return state_->floats_at(state_->offsets.logits); }

Expected<void> GpuTransformer::read_logits(std::span<const std::size_t> rows,
                                           std::span<float> to) const {
  const std::size_t vocab = config().vocab_size;
  KV_CHECK(!state_->is_under_way && to.size() == rows.size() * vocab, to.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    KV_CHECK(rows[i] < static_cast<std::size_t>(state_->last_step.wanted_rows), rows[i]);
    auto* const row = reinterpret_cast<std::byte*>(to.data() + i * vocab);
    const auto* const from = reinterpret_cast<const std::byte*>(logits() + rows[i] * vocab);
    if (auto queued = state_->device.copy(row, from, vocab * sizeof(float), stream().handle());
        !queued)
      return queued;
  }
  return stream().finish();
}

Expected<void> GpuTransformer::start(const ForwardBatch& batch,
                                     std::span<const SampleChoice> choices, std::byte* kv_base,
                                     const KvLayout& layout, const BeforeLayer& before_layer) {
  State& state = *state_;
  KV_CHECK(!state.is_under_way);
  check_batch(batch, state.config, state.groups, layout);
  check_limits(batch, choices, state.limits);
  StepInputs inputs(state.staging.data(), state.at(state.offsets.inputs),
                    state.offsets.input_bytes());
  const GpuStep step = plan_step(state.step_context(kv_base, layout), batch, choices, inputs);
  state.last_step = {static_cast<std::int32_t>(batch.logit_rows.size()), step.n, step.K};
  auto queued = state.enqueue(step, inputs.bytes(), kv_base, layout, before_layer);
  if (queued) queued = state.stream.mark();
  if (queued) {
    state.is_under_way = true;
    return {};
  }
  // Queued work still reads the staging area. And a kernel that fails to start does not report a
  // lost device; waiting for the stream does.
  auto drained = state.stream.finish();
  if (!drained && drained.error().code == Errc::device_lost) return drained;
  return queued;
}

Expected<GpuSamples> GpuTransformer::wait() {
  State& state = *state_;
  KV_CHECK(state.is_under_way);
  state.is_under_way = false;
  if (auto done = state.stream.wait_for_mark(); !done) return forward_error(done);
  const std::size_t n = state.last_step.wanted_rows, K = state.last_step.K;
  const OutputParts outputs = output_parts(state.host_outputs(), state.last_step.padded_rows, K);
  return GpuSamples{{outputs.tokens, n},
                    {outputs.logprobs, n},
                    state.last_step.K,
                    {outputs.likeliest, n * K},
                    {outputs.likeliest_logprobs, n * K}};
}

}  // namespace kvhive
