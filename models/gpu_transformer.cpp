#include "models/gpu_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "config/check.hpp"
#include "config/round_up.hpp"
#include "device/device_memory.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "models/gpu_weights.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kAlignment = 256;  ///< of activations
constexpr std::size_t kInputAlignment = 16;

/// The attention windows that a model's layers have.
std::vector<std::int32_t> windows_of(const ModelConfig& config) {
  std::vector<std::int32_t> windows;
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    if (const auto window = config.window_of(layer); std::ranges::count(windows, window) == 0)
      windows.push_back(window);
  return windows;
}

/// Splits that a plan makes of one query token, at most: it cuts at the borders of pieces only.
std::size_t splits_per_token(const GpuLimits& limits, std::int32_t window) {
  const PieceSizes sizes = piece_sizes(64, window);
  std::size_t pieces = 0;
  for (std::int32_t t = 0; t < limits.kv_tokens; t = sizes.border_after(t)) ++pieces;
  if (window > 0) pieces = std::min<std::size_t>(pieces, window / sizes.least + 2);
  return pieces + 1;
}

std::size_t most_splits_per_token(const ModelConfig& config, const GpuLimits& limits) {
  std::size_t most = 0;
  for (const std::int32_t window : windows_of(config))
    most = std::max(most, splits_per_token(limits, window));
  return most;
}

/// All that a step copies to the device, each part aligned.
std::size_t most_input_bytes(const ModelConfig& config, const GpuLimits& limits) {
  const std::size_t tokens = limits.tokens, rows = limits.logit_rows;
  std::size_t bytes = tokens * (sizeof(TokenId) + sizeof(std::int32_t) + sizeof(std::int64_t)) +
                      std::size_t(limits.sequences) * limits.blocks * sizeof(std::uint32_t) +
                      rows * (sizeof(std::int32_t) + sizeof(SampleChoice)) + 6 * kInputAlignment;
  for (const std::int32_t window : windows_of(config))
    bytes += tokens *
             (splits_per_token(limits, window) * (sizeof(AttentionSplit) + sizeof(AttentionTile)) +
              sizeof(SplitQuery) + 3 * kInputAlignment);  // a plan per token at worst
  return bytes;
}

std::size_t output_bytes(std::size_t rows, std::size_t likeliest) {
  return rows * (1 + likeliest) * (sizeof(TokenId) + sizeof(float));
}

/// Where a step's rows lie in one allocation; offsets in bytes.
struct Rooms {
  std::size_t residual, delta;  ///< f32 [T, hidden]
  std::size_t normed;           ///< [T, hidden] of the model's dtype, as those that follow
  std::size_t q, heads;         ///< [T, H, D]
  std::size_t k, v;             ///< [T, G, D]
  std::size_t gate_up, inner;   ///< [T, 2 * intermediate], [T, intermediate]
  std::size_t wanted;           ///< [logit rows, hidden]
  std::size_t logits;           ///< f32 [logit rows, vocab]
  std::size_t attention_states, outputs;  ///< f32; as GpuSamples
  std::size_t inputs;
  std::size_t bytes = 0;
  std::int32_t most_states = 0;

  Rooms(const ModelConfig& config, const GpuLimits& limits) {
    const std::size_t T = limits.tokens, n = limits.logit_rows, hidden = config.hidden_size,
                      element = bytes_of(config.dtype);
    const std::size_t q_width = std::size_t(config.heads) * config.head_size;
    const std::size_t kv_width = std::size_t(config.kv_heads) * config.head_size;
    residual = take(T * hidden * sizeof(float));
    delta = take(T * hidden * sizeof(float));
    normed = take(T * hidden * element);
    q = take(T * q_width * element);
    heads = take(T * q_width * element);
    k = take(T * kv_width * element);
    v = take(T * kv_width * element);
    gate_up = take(T * 2 * config.intermediate_size * element);
    inner = take(T * config.intermediate_size * element);
    wanted = take(n * hidden * element);
    logits = take(n * config.vocab_size * sizeof(float));
    const std::size_t state_bytes =
        std::size_t(config.heads) * (config.head_size + 2) * sizeof(float);
    const std::size_t per_token = most_splits_per_token(config, limits);
    // What a plan wants at most, if there is room for it; what a single token needs, anyway.
    const std::size_t wanted_states =
        std::min<std::size_t>(T * per_token, static_cast<std::size_t>(PlanLimits{}.states));
    const std::size_t states =
        std::max(std::min(limits.state_bytes / state_bytes, wanted_states), per_token);
    most_states = static_cast<std::int32_t>(states);
    attention_states = take(states * state_bytes);
    outputs = take(output_bytes(n, limits.likeliest));
    inputs = take(most_input_bytes(config, limits));
  }

 private:
  std::size_t take(std::size_t count) {
    const std::size_t offset = round_up(bytes, kAlignment);
    bytes = offset + count;
    return offset;
  }
};

/// Fills the staging area part by part; what is at an offset there will be at the same one on the
/// device.
class StepInputs {
 public:
  StepInputs(std::byte* host, const std::byte* device, std::size_t capacity)
      : host_(host), device_(device), capacity_(capacity) {}

  /// \returns where it will be on the device
  template <class Range>
  auto add(const Range& values) {
    using T = std::ranges::range_value_t<Range>;
    const std::span<const T> part(values);
    const std::size_t offset = round_up(bytes_, kInputAlignment);
    KV_CHECK(offset + part.size_bytes() <= capacity_, offset, part.size_bytes(), capacity_);
    if (!part.empty()) std::memcpy(host_ + offset, part.data(), part.size_bytes());
    bytes_ = offset + part.size_bytes();
    return reinterpret_cast<const T*>(device_ + offset);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* host_;
  const std::byte* device_;
  std::size_t capacity_;
  std::size_t bytes_ = 0;
};

/// What the kernels of one step share, on the device.
struct Step {
  std::int32_t T = 0, n = 0, K = 0;
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int64_t* slot_mapping = nullptr;
  const std::uint32_t* block_table = nullptr;
  const std::int32_t* logit_rows = nullptr;
  const SampleChoice* choices = nullptr;
  std::int32_t B = 0, M = 0;
  /// For each window attention in as many calls as it takes, lest its states outgrow their room.
  std::vector<std::vector<AttentionWork>> attention;
};

/// Plans attention for query tokens first..last-1; in halves if there is no room for the states.
/// \param args  of the whole batch, on the host
void plan_attention(const PagedAttentionArgs& args, std::int32_t first, std::int32_t last,
                    std::int32_t most_states, float* states, StepInputs& inputs,
                    std::vector<AttentionWork>& works) {
  if (first == last) return;
  std::vector<std::int32_t> query_start(args.B + 1), kv_len(args.B);
  for (std::int32_t b = 0; b <= args.B; ++b)
    query_start[b] = std::clamp(args.query_start[b], first, last);
  for (std::int32_t b = 0; b < args.B; ++b)
    kv_len[b] = args.kv_len[b] - (args.query_start[b + 1] - query_start[b + 1]);
  PagedAttentionArgs part = args;
  part.query_start = query_start.data();
  part.kv_len = kv_len.data();
  const SplitPlan plan = plan_splits(part, {.states = most_states});
  if (plan.states > most_states) {
    KV_CHECK(last - first > 1, plan.states, most_states);
    const std::int32_t middle = first + (last - first) / 2;
    plan_attention(args, first, middle, most_states, states, inputs, works);
    plan_attention(args, middle, last, most_states, states, inputs, works);
    return;
  }
  const auto* splits = inputs.add(plan.splits);
  const auto* tiles = inputs.add(plan.tiles);
  works.push_back(plan.work(splits, tiles, inputs.add(plan.merged), states));
}

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
  State(Device& of, const ModelConfig& model, const std::byte* mapped, const GpuLimits& most)
      : device(of),
        config(model),
        limits(most),
        weights(model),
        windows(windows_of(model)),
        rooms(model, most),
        region(mapped) {}
  ~State() {
    if (is_under_way) (void)lane.finish();  // it uses what goes now
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device& device;
  ModelConfig config;
  GpuLimits limits;
  GpuWeights weights;  ///< offsets in `region`
  std::vector<std::int32_t> windows;
  Rooms rooms;  ///< offsets in `memory`
  const std::byte* region;
  DeviceBuffer memory;
  StagingBuffer staging;  ///< a step's inputs, then its outputs
  Lane lane;
  bool is_under_way = false;
  std::int32_t rows = 0, K = 0;  ///< of the last step's outputs

  std::size_t input_room() const { return rooms.bytes - rooms.inputs; }
  std::byte* host_outputs() const {
    return staging.data() + round_up(input_room(), kInputAlignment);
  }
  std::byte* at(std::size_t room) const { return memory.data() + room; }
  float* floats_at(std::size_t room) const { return reinterpret_cast<float*>(at(room)); }
  const float* f32_at(std::size_t offset) const {
    return offset == kNoTensor ? nullptr : reinterpret_cast<const float*>(region + offset);
  }

  Step prepare(const ForwardBatch& batch, std::span<const SampleChoice> choices, std::byte* kv_base,
               const KvLayout& layout, StepInputs& inputs) const;
  PagedAttentionArgs attention_args(const PagedKv& kv, std::int32_t window) const;

  Expected<void> enqueue(const Step& step, std::size_t input_bytes, std::byte* kv_base,
                         const KvLayout& layout, const BeforeLayer& before_layer);
  /// Of all n rows, or of those named.
  Expected<void> norm(const std::byte* delta, std::size_t weight, std::size_t out, std::int32_t n,
                      const std::int32_t* of_rows = nullptr);
  Expected<void> multiply(std::size_t x, const GpuMatrix& matrix, std::size_t y, std::int32_t T,
                          Dtype out);
  Expected<void> project_heads(const Step& step, const GpuLayer& layer);
  Expected<void> attend(const Step& step, const PagedKv& kv, std::int32_t window);
  Expected<void> feed_forward(const Step& step, const GpuLayer& layer);
  Expected<void> run_layer(const Step& step, std::int32_t index, const PagedKv& kv);
  Expected<void> choose(const Step& step);
};

PagedAttentionArgs GpuTransformer::State::attention_args(const PagedKv& kv,
                                                         std::int32_t window) const {
  PagedAttentionArgs args;
  args.q = at(rooms.q);
  args.kv = kv;
  args.out = at(rooms.heads);
  args.H = config.heads;
  args.q_dtype = config.dtype;
  args.window = window;
  args.scale = 1 / std::sqrt(static_cast<float>(config.head_size));
  return args;
}

Step GpuTransformer::State::prepare(const ForwardBatch& batch,
                                    std::span<const SampleChoice> choices, std::byte* kv_base,
                                    const KvLayout& layout, StepInputs& inputs) const {
  Step step;
  step.T = static_cast<std::int32_t>(batch.tokens.size());
  step.n = static_cast<std::int32_t>(batch.logit_rows.size());
  step.B = static_cast<std::int32_t>(batch.kv_len.size());
  step.M = batch.max_blocks;
  for (const SampleChoice& choice : choices) step.K = std::max(step.K, choice.likeliest);
  step.tokens = inputs.add(batch.tokens);
  step.positions = inputs.add(batch.positions);
  step.slot_mapping = inputs.add(batch.slot_mapping);
  step.block_table = inputs.add(batch.block_table);
  step.logit_rows = inputs.add(batch.logit_rows);
  step.choices = inputs.add(choices);
  for (const std::int32_t window : windows) {
    PagedAttentionArgs args = attention_args(layer_view(kv_base, layout, 0), window);
    args.block_table = batch.block_table.data();
    args.query_start = batch.query_start.data();
    args.kv_len = batch.kv_len.data();
    args.B = step.B;
    args.M = step.M;
    plan_attention(args, 0, step.T, rooms.most_states, floats_at(rooms.attention_states), inputs,
                   step.attention.emplace_back());
  }
  return step;
}

Expected<void> GpuTransformer::State::norm(const std::byte* delta, std::size_t weight,
                                           std::size_t out, std::int32_t n,
                                           const std::int32_t* of_rows) {
  return add_rms_norm_cuda({.residual = floats_at(rooms.residual),
                            .delta = delta,
                            .weight = f32_at(weight),
                            .out = at(out),
                            .rows = of_rows,
                            .n = n,
                            .width = config.hidden_size,
                            .eps = config.rms_norm_eps,
                            .delta_dtype = Dtype::f32,
                            .out_dtype = config.dtype},
                           lane.stream());
}

Expected<void> GpuTransformer::State::multiply(std::size_t x, const GpuMatrix& matrix,
                                               std::size_t y, std::int32_t T, Dtype out) {
  return device.multiply({.x = at(x),
                          .w = region + matrix.weights,
                          .bias = matrix.bias == kNoTensor ? nullptr : region + matrix.bias,
                          .y = at(y),
                          .T = T,
                          .N = matrix.N,
                          .K = matrix.K,
                          .dtype = config.dtype,
                          .out_dtype = out},
                         lane.stream());
}

Expected<void> GpuTransformer::State::project_heads(const Step& step, const GpuLayer& layer) {
  const auto project = [&](const GpuMatrix& matrix, std::size_t to) {
    return multiply(rooms.normed, matrix, to, step.T, config.dtype);
  };
  return project(layer.q, rooms.q)
      .and_then([&] { return project(layer.k, rooms.k); })
      .and_then([&] { return project(layer.v, rooms.v); })
      .and_then([&] {
        return rotate_cuda({.q = at(rooms.q),
                            .k = at(rooms.k),
                            .positions = step.positions,
                            .frequencies = f32_at(weights.frequencies),
                            .q_norm = f32_at(layer.q_norm),
                            .k_norm = f32_at(layer.k_norm),
                            .T = step.T,
                            .H = config.heads,
                            .G = config.kv_heads,
                            .D = config.head_size,
                            .eps = config.rms_norm_eps,
                            .dtype = config.dtype},
                           lane.stream());
      });
}

Expected<void> GpuTransformer::State::attend(const Step& step, const PagedKv& kv,
                                             std::int32_t window) {
  Expected<void> queued = cache_write_cuda({.k = at(rooms.k),
                                            .v = at(rooms.v),
                                            .slot_mapping = step.slot_mapping,
                                            .kv = kv,
                                            .T = step.T,
                                            .in_dtype = config.dtype},
                                           lane.stream());
  PagedAttentionArgs args = attention_args(kv, window);
  args.block_table = step.block_table;
  args.B = step.B;
  args.M = step.M;
  const auto kind = std::ranges::find(windows, window) - windows.begin();
  for (const AttentionWork& work : step.attention[kind])
    if (queued) queued = paged_attention_cuda(args, work, lane.stream());
  return queued;
}

Expected<void> GpuTransformer::State::feed_forward(const Step& step, const GpuLayer& layer) {
  const std::size_t inner = config.intermediate_size;
  return multiply(rooms.normed, layer.gate_up, rooms.gate_up, step.T, config.dtype)
      .and_then([&] {
        const std::byte* gate = at(rooms.gate_up);
        return silu_multiply_cuda({.gate = gate,
                                   .up = gate + inner * bytes_of(config.dtype),
                                   .out = at(rooms.inner),
                                   .T = step.T,
                                   .I = config.intermediate_size,
                                   .in_stride = 2 * config.intermediate_size,
                                   .dtype = config.dtype},
                                  lane.stream());
      })
      .and_then([&] { return multiply(rooms.inner, layer.down, rooms.delta, step.T, Dtype::f32); });
}

/// Leaves what the layer adds to the residual in `delta`: the next norm adds it.
Expected<void> GpuTransformer::State::run_layer(const Step& step, std::int32_t index,
                                                const PagedKv& kv) {
  const GpuLayer& layer = weights.layers[index];
  return norm(index == 0 ? nullptr : at(rooms.delta), layer.input_norm, rooms.normed, step.T)
      .and_then([&] { return project_heads(step, layer); })
      .and_then([&] { return attend(step, kv, config.window_of(index)); })
      .and_then([&] { return multiply(rooms.heads, layer.o, rooms.delta, step.T, Dtype::f32); })
      .and_then(
          [&] { return norm(at(rooms.delta), layer.post_attention_norm, rooms.normed, step.T); })
      .and_then([&] { return feed_forward(step, layer); });
}

Expected<void> GpuTransformer::State::choose(const Step& step) {
  if (step.n == 0) return {};
  auto* tokens = reinterpret_cast<TokenId*>(at(rooms.outputs));
  auto* logprobs = reinterpret_cast<float*>(tokens + step.n);
  auto* likeliest = reinterpret_cast<TokenId*>(logprobs + step.n);
  return norm(at(rooms.delta), weights.final_norm, rooms.wanted, step.n, step.logit_rows)
      .and_then(
          [&] { return multiply(rooms.wanted, weights.lm_head, rooms.logits, step.n, Dtype::f32); })
      .and_then([&] {
        return sample_cuda(
            {.logits = floats_at(rooms.logits),
             .choices = step.choices,
             .tokens = tokens,
             .logprobs = logprobs,
             .likeliest_tokens = likeliest,
             .likeliest_logprobs = reinterpret_cast<float*>(likeliest + step.n * step.K),
             .n = step.n,
             .vocab = config.vocab_size,
             .K = step.K},
            lane.stream());
      })
      .and_then([&] {
        return device.copy(host_outputs(), at(rooms.outputs), output_bytes(step.n, step.K),
                           lane.stream());
      });
}

Expected<void> GpuTransformer::State::enqueue(const Step& step, std::size_t input_bytes,
                                              std::byte* kv_base, const KvLayout& layout,
                                              const BeforeLayer& before_layer) {
  if (step.T == 0) return {};
  auto queued = device.copy(at(rooms.inputs), staging.data(), input_bytes, lane.stream());
  if (queued)
    queued = embed_cuda({.table = region + weights.embedding,
                         .tokens = step.tokens,
                         .out = floats_at(rooms.residual),
                         .T = step.T,
                         .width = config.hidden_size,
                         .dtype = config.dtype},
                        lane.stream());
  for (std::int32_t layer = 0; layer < config.layers && queued; ++layer) {
    if (before_layer) queued = before_layer(layer);
    if (queued) queued = run_layer(step, layer, layer_view(kv_base, layout, layer));
  }
  return queued.and_then([&] { return choose(step); });
}

std::size_t GpuTransformer::device_bytes(const ModelConfig& config, const GpuLimits& limits) {
  return Rooms(config, limits).bytes;
}

Expected<GpuTransformer> GpuTransformer::create(Device& device, const ModelConfig& config,
                                                const std::byte* weights, const GpuLimits& limits) {
  auto state = std::make_unique<State>(device, config, weights, limits);
  auto memory = DeviceBuffer::allocate(device, state->rooms.bytes);
  if (!memory) return forward_error(memory);
  state->memory = std::move(*memory);
  const std::size_t staging_bytes = round_up(state->input_room(), kInputAlignment) +
                                    output_bytes(limits.logit_rows, limits.likeliest);
  auto staging = StagingBuffer::allocate(device, staging_bytes);
  if (!staging) return forward_error(staging);
  state->staging = std::move(*staging);
  auto lane = Lane::open(device);
  if (!lane) return forward_error(lane);
  state->lane = std::move(*lane);
  return GpuTransformer(std::move(state));
}

GpuTransformer::GpuTransformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
GpuTransformer::GpuTransformer(GpuTransformer&&) noexcept = default;
GpuTransformer& GpuTransformer::operator=(GpuTransformer&&) noexcept = default;
GpuTransformer::~GpuTransformer() = default;

const ModelConfig& GpuTransformer::config() const { return state_->config; }
const Lane& GpuTransformer::lane() const { return state_->lane; }
const float* GpuTransformer::logits() const { return state_->floats_at(state_->rooms.logits); }

Expected<void> GpuTransformer::start(const ForwardBatch& batch,
                                     std::span<const SampleChoice> choices, std::byte* kv_base,
                                     const KvLayout& layout, const BeforeLayer& before_layer) {
  State& state = *state_;
  KV_CHECK(!state.is_under_way);
  check_batch(batch, state.config, layout);
  check_limits(batch, choices, state.limits);
  StepInputs inputs(state.staging.data(), state.at(state.rooms.inputs), state.input_room());
  const Step step = state.prepare(batch, choices, kv_base, layout, inputs);
  state.rows = step.n;
  state.K = step.K;
  auto queued = state.enqueue(step, inputs.bytes(), kv_base, layout, before_layer);
  if (queued) queued = state.lane.mark();
  if (queued) {
    state.is_under_way = true;
    return {};
  }
  // What has been queued reads the staging area. A kernel that does not start cannot say that the
  // device is lost: the device can.
  auto drained = state.lane.finish();
  if (!drained && drained.error().code == Errc::device_lost) return drained;
  return queued;
}

Expected<GpuSamples> GpuTransformer::wait() {
  State& state = *state_;
  KV_CHECK(state.is_under_way);
  state.is_under_way = false;
  if (auto done = state.lane.finish(); !done) return forward_error(done);
  const std::size_t n = state.rows, listed = n * std::size_t(state.K);
  const auto* tokens = reinterpret_cast<const TokenId*>(state.host_outputs());
  const auto* logprobs = reinterpret_cast<const float*>(tokens + n);
  const auto* likeliest = reinterpret_cast<const TokenId*>(logprobs + n);
  return GpuSamples{{tokens, n},
                    {logprobs, n},
                    state.K,
                    {likeliest, listed},
                    {reinterpret_cast<const float*>(likeliest + listed), listed}};
}

}  // namespace kvhive
