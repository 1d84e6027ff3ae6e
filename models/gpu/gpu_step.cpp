#include "models/gpu/gpu_step.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.hpp"
#include "base/round_up.hpp"
#include "models/gpu/gpu_buffer_offsets.hpp"

namespace kvhive {
namespace {

constexpr std::int32_t kLeastBlocks = 16;  ///< least columns of a decode step's block table

/// A batch as layers with chunks see it.
struct ChunkedBatch {
  std::vector<std::int32_t> query_start{0}, kv_len;
  std::vector<BlockId> table;  ///< [B, M]
  std::int32_t M = 0;

  ChunkedBatch(const ForwardBatch& batch, const AttentionKind& kind, std::int32_t block_size)
      : M(std::min(batch.max_blocks, kind.chunk / block_size)) {
    KV_CHECK(kind.chunk % block_size == 0, kind.chunk, block_size);
    const auto of_group = batch.table_of(kind.group);
    for (std::size_t b = 0; b < batch.kv_len.size(); ++b) {
      const std::int32_t end = batch.kv_len[b];
      const auto row = of_group.subspan(b * std::size_t(batch.max_blocks),
                                        static_cast<std::size_t>(batch.max_blocks));
      std::int32_t t = end - (batch.query_start[b + 1] - batch.query_start[b]);
      while (t < end) {
        const std::int32_t begin = t / kind.chunk * kind.chunk;
        const std::int32_t next = std::min(begin + kind.chunk, end);
        query_start.push_back(query_start.back() + next - t);
        kv_len.push_back(next - begin);
        const auto of_chunk = row.subspan(static_cast<std::size_t>(begin / block_size));
        const std::size_t count = std::min(of_chunk.size(), static_cast<std::size_t>(M));
        table.insert(table.end(), of_chunk.begin(), of_chunk.begin() + std::ptrdiff_t(count));
        table.resize(kv_len.size() * static_cast<std::size_t>(M), kNullBlock);
        t = next;
      }
    }
  }
};

/// A batch as one kind of layers sees it. Arguments point into it.
struct KindBatch {
  KindBatch(const StepContext& context, const ForwardBatch& batch, const AttentionKind& kind)
      : attention(context.attention) {
    attention.window = kind.window;
    attention.block_table = batch.table_of(kind.group).data();
    attention.query_start = batch.query_start.data();
    attention.kv_len = batch.kv_len.data();
    attention.B = static_cast<std::int32_t>(batch.kv_len.size());
    attention.M = batch.max_blocks;
    if (kind.chunk == 0) return;
    chunked.emplace(batch, kind, static_cast<std::int32_t>(context.layout.block_size));
    attention.block_table = chunked->table.data();
    attention.query_start = chunked->query_start.data();
    attention.kv_len = chunked->kv_len.data();
    attention.B = static_cast<std::int32_t>(chunked->kv_len.size());
    attention.M = chunked->M;
  }
  KindBatch(KindBatch&&) noexcept = default;  // vectors keep their memory
  KindBatch& operator=(KindBatch&&) noexcept = default;
  ~KindBatch() = default;

  std::optional<ChunkedBatch> chunked;
  PagedAttentionArgs attention;
};

std::vector<KindBatch> by_kind(const StepContext& context, const ForwardBatch& batch) {
  std::vector<KindBatch> batches;
  for (const AttentionKind& kind : context.kinds) batches.emplace_back(context, batch, kind);
  return batches;
}

AttentionWork add_plan(const SplitPlan& plan, float* states, StepInputs& inputs) {
  const auto* splits = inputs.add(plan.splits);
  const auto* tiles = inputs.add(plan.tiles);
  return plan.work(splits, tiles, inputs.add(plan.merged), states);
}

/// Plans attention for query tokens first..last-1. If the scratch for states is too small, plans
/// two halves.
///
/// \param args of the whole batch, in host memory
void plan_attention(const PagedAttentionArgs& args, std::int32_t first, std::int32_t last,
                    const StepContext& context, StepInputs& inputs,
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
  const SplitPlan plan = plan_splits(part, {.states = context.most_states});
  if (plan.states > context.most_states) {
    KV_CHECK(last - first > 1, plan.states, context.most_states);
    const std::int32_t middle = first + (last - first) / 2;
    plan_attention(args, first, middle, context, inputs, works);
    plan_attention(args, middle, last, context, inputs, works);
    return;
  }
  works.push_back(add_plan(plan, context.states, inputs));
}

bool is_decode(const ForwardBatch& batch) {
  const std::size_t B = batch.kv_len.size();
  if (B == 0 || batch.tokens.size() != B || batch.logit_rows.size() != B) return false;
  if (!batch.embedded.empty()) return false;
  for (std::size_t b = 0; b < B; ++b)
    if (batch.query_start[b + 1] - batch.query_start[b] != 1 ||
        batch.logit_rows[b] != static_cast<std::int32_t>(b))
      return false;
  return true;
}

/// 1, 2, 4 or the next multiple of 8, but not more than the limits allow.
std::int32_t padded_rows(std::int32_t rows, const GpuLimits& limits) {
  const std::size_t padded =
      rows <= 4 ? std::bit_ceil(static_cast<unsigned>(rows)) : round_up(std::size_t(rows), 8);
  return std::min(
      {static_cast<std::int32_t>(padded), limits.tokens, limits.sequences, limits.logit_rows});
}

/// The next power of two; 0 stays 0.
std::int32_t padded_count(std::int32_t count) {
  return count == 0 ? 0 : static_cast<std::int32_t>(std::bit_ceil(static_cast<unsigned>(count)));
}

/// The plan's counts rounded up, so that few different shapes occur.
PlanCounts padded_counts(const SplitPlan& plan, std::int32_t most_states) {
  const PlanCounts counts = plan.counts();
  return {padded_count(counts.splits), padded_count(counts.narrow_tiles),
          padded_count(counts.wide_tiles), padded_count(counts.merged),
          std::min(padded_count(counts.states), most_states)};
}

/// One plan for each kind of layers, or no plan at all if one of them has more states than the
/// scratch.
std::vector<SplitPlan> plan_kinds(const StepContext& context, std::span<const KindBatch> batches) {
  std::vector<SplitPlan> plans;
  for (const KindBatch& batch : batches) {
    plans.push_back(plan_splits(batch.attention, {.states = context.most_states}));
    if (plans.back().states > context.most_states) return {};
  }
  return plans;
}

/// [T] what the batch says by sequence.
std::vector<std::int32_t> adapters_by_row(const ForwardBatch& batch) {
  std::vector<std::int32_t> rows(batch.tokens.size());
  for (std::size_t b = 0; b < batch.adapters.size(); ++b)
    std::fill(rows.begin() + batch.query_start[b], rows.begin() + batch.query_start[b + 1],
              batch.adapters[b]);
  return rows;
}

/// Adds a kind's block tables, widened to `rows` of `columns`.
void add_tables(const KindBatch& batch, std::int32_t rows, std::int32_t columns, GpuStep& step,
                StepInputs& inputs) {
  const PagedAttentionArgs& args = batch.attention;
  const std::span<const BlockId> entries(
      args.block_table, static_cast<std::size_t>(args.B) * static_cast<std::size_t>(args.M));
  step.tables.push_back(
      {inputs.add_rows(entries, static_cast<std::size_t>(args.M), static_cast<std::size_t>(rows),
                       static_cast<std::size_t>(columns), kNullBlock),
       rows, columns});
}

/// Adds all inputs but those of attention.
void add_batch(const StepContext& context, const ForwardBatch& batch,
               std::span<const SampleChoice> choices, GpuStep& step, StepInputs& inputs) {
  constexpr std::int64_t kNoSlot = -1;
  constexpr std::int32_t kNoAdapter = -1;
  for (const SampleChoice& choice : choices) step.K = std::max(step.K, choice.likeliest);
  step.tokens = inputs.add(batch.tokens, step.T);
  step.positions = inputs.add(batch.positions, step.T);
  if (!batch.adapters.empty()) {
    const auto adapters = adapters_by_row(batch);
    step.adapters = inputs.add(std::span(adapters), step.T, kNoAdapter);
  }
  for (std::uint8_t g = 0; g < context.groups; ++g)
    step.slot_mapping.push_back(inputs.add(batch.slots_of(GroupId{g}), step.T, kNoSlot));
  step.logit_rows = inputs.add(batch.logit_rows, step.n);
  step.choices = inputs.add(choices, step.n);
}

GpuStep plan_decode(const StepContext& context, const ForwardBatch& batch,
                    std::span<const SampleChoice> choices, std::span<const KindBatch> batches,
                    std::vector<SplitPlan> plans, StepInputs& inputs) {
  GpuStep step;
  step.T = step.n = padded_rows(static_cast<std::int32_t>(batch.tokens.size()), context.limits);
  const std::int32_t M =
      std::min(padded_count(std::max(batch.max_blocks, kLeastBlocks)), context.limits.blocks);
  add_batch(context, batch, choices, step, inputs);
  step.shape = {.rows = step.T,
                .blocks = M,
                .likeliest = step.K,
                .is_adapted = step.adapters != nullptr,
                .attention = {},
                .kv_base = context.kv_base,
                .layout = context.layout};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::int32_t chunk = context.kinds[i].chunk;
    const auto of_chunk = chunk / static_cast<std::int32_t>(context.layout.block_size);
    add_tables(batches[i], step.T, chunk == 0 ? M : std::min(M, of_chunk), step, inputs);
    SplitPlan& plan = plans[i];
    plan.pad(padded_counts(plan, context.most_states));
    step.shape->attention.push_back(plan.counts());
    step.attention.push_back({add_plan(plan, context.states, inputs)});
  }
  return step;
}

}  // namespace

void* StepInputs::take(std::size_t bytes) {
  const std::size_t offset = round_up(bytes_, kInputAlignment);
  KV_CHECK(offset + bytes <= capacity_, offset, bytes, capacity_);
  bytes_ = offset + bytes;
  return host_ + offset;
}

GpuStep plan_step(const StepContext& context, const ForwardBatch& batch,
                  std::span<const SampleChoice> choices, StepInputs& inputs) {
  const std::vector<KindBatch> batches = by_kind(context, batch);
  if (is_decode(batch))
    if (auto plans = plan_kinds(context, batches); !plans.empty())
      return plan_decode(context, batch, choices, batches, std::move(plans), inputs);
  GpuStep step;
  step.T = static_cast<std::int32_t>(batch.tokens.size());
  step.n = static_cast<std::int32_t>(batch.logit_rows.size());
  add_batch(context, batch, choices, step, inputs);
  for (const KindBatch& of_kind : batches) {
    add_tables(of_kind, of_kind.attention.B, of_kind.attention.M, step, inputs);
    plan_attention(of_kind.attention, 0, step.T, context, inputs, step.attention.emplace_back());
  }
  return step;
}

}  // namespace kvhive
