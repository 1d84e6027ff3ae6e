#include "models/gpu/gpu_buffer_offsets.hpp"

#include <algorithm>

#include "base/round_up.hpp"
#include "kernels/cuda/split_plan.hpp"
#include "kernels/sampling.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kBufferAlignment = 256;

/// The most splits that a plan makes of one query token; it cuts at borders of pieces only.
std::size_t splits_per_token(const GpuLimits& limits, std::int32_t window) {
  const PieceSizes sizes = piece_sizes(64, window);
  std::size_t pieces = 0;
  for (std::int32_t t = 0; t < limits.kv_tokens; t = sizes.border_after(t)) ++pieces;
  if (window > 0) pieces = std::min<std::size_t>(pieces, window / sizes.least + 2);
  return pieces + 1;
}

std::size_t most_splits_per_token(const std::vector<AttentionKind>& kinds,
                                  const GpuLimits& limits) {
  std::size_t most = 0;
  for (const AttentionKind& kind : kinds)
    most = std::max(most, splits_per_token(limits, kind.window));
  return most;
}

/// Of the block tables that a kind of layers has in a step. A chunk has no more blocks than
/// tokens, and borders of chunks cut a step's sequences.
std::size_t most_table_entries(const AttentionKind& kind, const GpuLimits& limits) {
  const std::size_t sequences = limits.sequences, blocks = limits.blocks;
  if (kind.chunk == 0) return sequences * blocks;
  const std::size_t chunk = kind.chunk, block_size = limits.kv_tokens / limits.blocks;
  return (2 * sequences + limits.tokens / chunk) * std::min(blocks, chunk / block_size);
}

/// The most bytes that a step copies to the device, each part aligned.
std::size_t most_input_bytes(const std::vector<AttentionKind>& kinds, std::size_t groups,
                             const GpuLimits& limits) {
  const std::size_t tokens = limits.tokens, rows = limits.logit_rows;
  const std::size_t slots = tokens * sizeof(std::int64_t) + kInputAlignment;
  // Of a token: itself, its position and its adapter.
  std::size_t bytes = tokens * (sizeof(TokenId) + 2 * sizeof(std::int32_t)) + groups * slots +
                      rows * (sizeof(std::int32_t) + sizeof(SampleChoice)) + 5 * kInputAlignment;
  // Padding makes a decode step's plan less than twice as large.
  const std::size_t planned = std::max<std::size_t>(tokens, 2 * std::size_t(limits.sequences));
  for (const AttentionKind& kind : kinds)
    bytes +=
        most_table_entries(kind, limits) * sizeof(BlockId) + kInputAlignment +
        planned * (splits_per_token(limits, kind.window) *
                       (sizeof(AttentionSplit) + sizeof(AttentionTile)) +
                   sizeof(SplitQuery) +
                   3 * kInputAlignment);  // at worst each token is planned in a call of its own
  return bytes;
}

}  // namespace

OutputParts output_parts(std::byte* at, std::size_t rows, std::size_t K) {
  auto* const tokens = reinterpret_cast<TokenId*>(at);
  auto* const logprobs = reinterpret_cast<float*>(tokens + rows);
  auto* const likeliest = reinterpret_cast<TokenId*>(logprobs + rows);
  return {tokens, logprobs, likeliest, reinterpret_cast<float*>(likeliest + rows * K)};
}

std::size_t output_bytes(std::size_t rows, std::size_t K) {
  return rows * (1 + K) * (sizeof(TokenId) + sizeof(float));
}

GpuBufferOffsets::GpuBufferOffsets(const ModelConfig& config, const LayerGroups& groups,
                                   const GpuLimits& limits) {
  const std::vector<AttentionKind> kinds = attention_kinds(config, groups);
  const std::size_t T = limits.tokens, n = limits.logit_rows, hidden = config.hidden_size,
                    element = bytes_of(config.dtype);
  residual = take(T * hidden * sizeof(float));
  delta = take(T * hidden * sizeof(float));
  normed = take(T * hidden * element);
  take_attention(config, T);
  take_feed_forward(config, T);
  narrow = take(T * std::size_t(limits.adapter_rank) * sizeof(float));
  wanted = take(n * hidden * element);
  logits = take(n * config.vocab_size * sizeof(float));
  const std::size_t attended = config.is_latent() ? config.latent.rank : config.head_size;
  const std::size_t state_bytes = std::size_t(config.heads) * (attended + 2) * sizeof(float);
  const std::size_t per_token = most_splits_per_token(kinds, limits);
  // As many states as a plan uses at most, if the limits allow; at least those of one token.
  const std::size_t wanted_states =
      std::min<std::size_t>(T * per_token, static_cast<std::size_t>(PlanLimits{}.states));
  const std::size_t states =
      std::max(std::min(limits.state_bytes / state_bytes, wanted_states), per_token);
  most_states = static_cast<std::int32_t>(states);
  attention_states = take(states * state_bytes);
  outputs = take(output_bytes(n, limits.likeliest));
  inputs = take(most_input_bytes(kinds, groups.groups.count, limits));
}

void GpuBufferOffsets::take_attention(const ModelConfig& config, std::size_t T) {
  const std::size_t element = bytes_of(config.dtype), H = config.heads;
  q = take(T * H * config.head_size * element);
  heads = take(T * H * config.value_size() * element);
  const std::size_t kv = config.is_latent() ? 0 : std::size_t(config.kv_heads) * config.head_size;
  k = take(T * kv * element);
  v = take(T * kv * element);
  if (!config.is_latent()) return;
  const LatentShape& shape = config.latent;
  latents.unnormed_q = take(T * shape.query_rank * sizeof(float));
  latents.narrow_q = take(T * shape.query_rank * element);
  latents.kv_row = take(T * shape.row() * sizeof(float));
  latents.latent = take(T * shape.rank * sizeof(float));
  latents.shared_key = take(T * shape.rope * sizeof(float));
  latents.row_q = take(T * H * shape.row() * element);
  latents.attended = take(T * H * shape.rank * element);
}

void GpuBufferOffsets::take_feed_forward(const ModelConfig& config, std::size_t T) {
  const std::size_t element = bytes_of(config.dtype);
  const std::size_t pairs = T * config.experts_per_token;
  const std::size_t elements = std::max({T * config.intermediate_size, pairs * config.expert_inner,
                                         T * config.shared_experts * config.expert_inner});
  gate_up = take(2 * elements * element);
  inner = take(elements * element);
  if (config.experts == 0) return;
  experts.router = take(T * config.experts * sizeof(float));
  experts.chosen = take(pairs * sizeof(std::int32_t));
  experts.weights = take(pairs * sizeof(float));
  experts.pairs = take(pairs * sizeof(std::int32_t));
  experts.places = take(pairs * sizeof(std::int32_t));
  experts.first = take((std::size_t(config.experts) + 1) * sizeof(std::int32_t));
  experts.out = take(pairs * config.hidden_size * element);
}

std::size_t GpuBufferOffsets::take(std::size_t count) {
  const std::size_t offset = round_up(bytes, kBufferAlignment);
  bytes = offset + count;
  return offset;
}

}  // namespace kvhive
