#include "models/gpu/gpu_transformer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/round_up.hpp"
#include "device/device_memory.hpp"
#include "models/gpu/decode_graphs.hpp"
#include "models/gpu/gpu_forward.hpp"
#include "models/gpu/gpu_support.hpp"

namespace kvhive {
namespace {

void check_limits(const ForwardBatch& batch, std::span<const SampleChoice> choices,
                  const GpuLimits& limits, std::size_t adapters) {
  for (const std::int32_t adapter : batch.adapters)
    KV_CHECK(adapter < static_cast<std::int32_t>(adapters), adapter, adapters);
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
  State(Device& of, const ModelConfig& model, const std::byte* region, const GpuLimits& most,
        const LayerGroups& layer_groups, GpuAdapters of_region)
      : device(of),
        config(model),
        groups(layer_groups),
        limits(most),
        adapters(of_region.count()),
        forward(of, model, layer_groups, most, region, std::move(of_region)),
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
  std::size_t adapters;
  GpuForward forward;
  DeviceBuffer memory;
  StagingBuffer staging;  ///< a step's inputs, then its outputs
  OrderedStream stream;
  DecodeGraphs graphs;
  std::vector<float> given;       ///< a step's rows that are given as embeddings, scaled
  std::vector<EmbeddedRow> runs;  ///< in `given`
  bool is_under_way = false;
  struct {
    std::int32_t tokens = 0;
    std::int32_t wanted_rows = 0;
    std::int32_t padded_rows = 0, K = 0;  ///< of the outputs in `staging`
  } last_step;

  const GpuBufferOffsets& offsets() const { return forward.offsets(); }
  std::byte* host_outputs() const {
    return staging.data() + round_up(offsets().input_bytes(), kInputAlignment);
  }

  void gather(std::span<const EmbeddedRow> embedded);
  Expected<void> enqueue(const GpuStep& step, std::size_t input_bytes, std::byte* kv_base,
                         const KvLayout& layout, const BeforeLayer& before_layer);
  Expected<void> compute(const GpuStep& step, std::byte* kv_base, const KvLayout& layout,
                         const BeforeLayer& before_layer);
  Expected<void> project_some(std::span<const std::int32_t> rows, std::span<float> logits);
};

/// So that they are copied by few calls, and may change when the step has begun.
void GpuTransformer::State::gather(std::span<const EmbeddedRow> embedded) {
  const float factor = config.given_embedding_scale(config.dtype);
  const std::size_t width = config.hidden_size;
  given.clear();
  for (const EmbeddedRow& each : embedded)
    for (const float value : each.values) given.push_back(value * factor);
  runs.clear();
  for (std::size_t i = 0; i < embedded.size(); ++i) {
    const float* values = given.data() + i * width;
    if (i != 0 && embedded[i - 1].row + 1 == embedded[i].row)
      runs.back().values = {runs.back().values.data(), runs.back().values.size() + width};
    else
      runs.push_back({embedded[i].row, {values, width}});
  }
}

Expected<void> GpuTransformer::State::enqueue(const GpuStep& step, std::size_t input_bytes,
                                              std::byte* kv_base, const KvLayout& layout,
                                              const BeforeLayer& before_layer) {
  if (step.T == 0) return {};
  auto copied =
      device.copy(forward.at(offsets().inputs), staging.data(), input_bytes, stream.handle());
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
  auto queued = forward.compute(step, kv_base, layout, before_layer);
  if (!queued || step.n == 0) return queued;
  return device.copy(host_outputs(), forward.at(offsets().outputs), output_bytes(step.n, step.K),
                     stream.handle());
}

/// The logits of as many rows of the last step as there is room for.
Expected<void> GpuTransformer::State::project_some(std::span<const std::int32_t> rows,
                                                   std::span<float> logits) {
  // The inputs of the last step are not needed any more.
  std::byte* const on_device = forward.at(offsets().inputs);
  std::memcpy(staging.data(), rows.data(), rows.size_bytes());
  return device.copy(on_device, staging.data(), rows.size_bytes(), stream.handle())
      .and_then([&] {
        return forward.project(reinterpret_cast<const std::int32_t*>(on_device),
                               static_cast<std::int32_t>(rows.size()));
      })
      .and_then([&] {
        return device.copy(reinterpret_cast<std::byte*>(logits.data()),
                           forward.at(offsets().logits), logits.size_bytes(), stream.handle());
      })
      .and_then([&] { return stream.finish(); });
}

std::size_t GpuTransformer::device_bytes(const ModelConfig& config, const GpuLimits& limits,
                                         const LayerGroups& groups) {
  return GpuBufferOffsets(config, groups, limits).bytes;
}

Expected<GpuTransformer> GpuTransformer::create(Device& device, const ModelConfig& config,
                                                const std::byte* weights, const GpuLimits& limits,
                                                const LayerGroups& groups, GpuAdapters adapters) {
  if (auto supported = check_gpu_model(config); !supported) return forward_error(supported);
  KV_CHECK(adapters.most_rank() <= limits.adapter_rank, adapters.most_rank(), limits.adapter_rank);
  auto state =
      std::make_unique<State>(device, config, weights, limits, groups, std::move(adapters));
  auto memory = DeviceBuffer::allocate(device, state->offsets().bytes);
  if (!memory) return forward_error(memory);
  state->memory = std::move(*memory);
  const std::size_t staging_bytes = round_up(state->offsets().input_bytes(), kInputAlignment) +
                                    output_bytes(limits.logit_rows, limits.likeliest);
  auto staging = StagingBuffer::allocate(device, staging_bytes);
  if (!staging) return forward_error(staging);
  state->staging = std::move(*staging);
  auto stream = OrderedStream::open(device);
  if (!stream) return forward_error(stream);
  state->stream = std::move(*stream);
  state->forward.use(state->memory.data(), state->stream.handle());
  return GpuTransformer(std::move(state));
}

GpuTransformer::GpuTransformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
GpuTransformer::GpuTransformer(GpuTransformer&&) noexcept = default;
GpuTransformer& GpuTransformer::operator=(GpuTransformer&&) noexcept = default;
GpuTransformer::~GpuTransformer() = default;

const ModelConfig& GpuTransformer::config() const { return state_->config; }
const OrderedStream& GpuTransformer::stream() const { return state_->stream; }
const float* GpuTransformer::logits() const {
  return state_->forward.floats_at(state_->offsets().logits);
}

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

Expected<void> GpuTransformer::further_logits(std::span<const std::int32_t> rows,
                                              std::span<float> logits) {
  State& state = *state_;
  const std::size_t vocab = config().vocab_size, most = state.limits.logit_rows;
  KV_CHECK(!state.is_under_way && logits.size() == rows.size() * vocab, logits.size(), rows.size());
  for (const std::int32_t row : rows)
    KV_CHECK(row >= 0 && row < state.last_step.tokens, row, state.last_step.tokens);
  for (std::size_t done = 0; done < rows.size(); done += most) {
    const std::size_t count = std::min(most, rows.size() - done);
    if (auto some = state.project_some(rows.subspan(done, count),
                                       logits.subspan(done * vocab, count * vocab));
        !some)
      return some;
  }
  return {};
}

Expected<void> GpuTransformer::start(const ForwardBatch& batch,
                                     std::span<const SampleChoice> choices, std::byte* kv_base,
                                     const KvLayout& layout, const BeforeLayer& before_layer) {
  State& state = *state_;
  KV_CHECK(!state.is_under_way);
  check_batch(batch, state.config, state.groups, layout);
  check_limits(batch, choices, state.limits, state.adapters);
  StepInputs inputs(state.staging.data(), state.forward.at(state.offsets().inputs),
                    state.offsets().input_bytes());
  GpuStep step = plan_step(state.forward.step_context(kv_base, layout), batch, choices, inputs);
  state.gather(batch.embedded);
  step.embedded = state.runs;
  state.last_step = {static_cast<std::int32_t>(batch.tokens.size()),
                     static_cast<std::int32_t>(batch.logit_rows.size()), step.n, step.K};
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
