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

PagedAttentionArgs attention_of(const StepContext& context, const ForwardBatch& batch,
                                const AttentionKind& kind) {
  PagedAttentionArgs args = context.attention;
  args.window = kind.window;
  args.block_table = batch.table_of(kind.group).data();
  args.query_start = batch.query_start.data();
  args.kv_len = batch.kv_len.data();
  args.B = static_cast<std::int32_t>(batch.kv_len.size());
  args.M = batch.max_blocks;
  return args;
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
std::vector<SplitPlan> plan_kinds(const StepContext& context, const ForwardBatch& batch) {
  std::vector<SplitPlan> plans;
  for (const AttentionKind& kind : context.kinds) {
    plans.push_back(
        plan_splits(attention_of(context, batch, kind), {.states = context.most_states}));
    if (plans.back().states > context.most_states) return {};
  }
  return plans;
}

/// Adds all inputs but those of attention.
void add_batch(const StepContext& context, const ForwardBatch& batch,
               std::span<const SampleChoice> choices, GpuStep& step, StepInputs& inputs) {
  constexpr std::int64_t kNoSlot = -1;
  for (const SampleChoice& choice : choices) step.K = std::max(step.K, choice.likeliest);
  step.tokens = inputs.add(batch.tokens, step.T);
  step.positions = inputs.add(batch.positions, step.T);
  for (std::uint8_t g = 0; g < context.groups; ++g) {
    step.slot_mapping.push_back(inputs.add(batch.slots_of(GroupId{g}), step.T, kNoSlot));
    step.block_table.push_back(
        inputs.add_rows(batch.table_of(GroupId{g}), batch.max_blocks, step.B, step.M, kNullBlock));
  }
  step.logit_rows = inputs.add(batch.logit_rows, step.n);
  step.choices = inputs.add(choices, step.n);
}

GpuStep plan_decode(const StepContext& context, const ForwardBatch& batch,
                    std::span<const SampleChoice> choices, std::vector<SplitPlan> plans,
                    StepInputs& inputs) {
  GpuStep step;
  step.T = step.n = step.B =
      padded_rows(static_cast<std::int32_t>(batch.tokens.size()), context.limits);
  step.M = std::min(padded_count(std::max(batch.max_blocks, kLeastBlocks)), context.limits.blocks);
  add_batch(context, batch, choices, step, inputs);
  step.shape = {step.T, step.M, step.K, {}, context.kv_base, context.layout};
  for (SplitPlan& plan : plans) {
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
  if (is_decode(batch))
    if (auto plans = plan_kinds(context, batch); !plans.empty())
      return plan_decode(context, batch, choices, std::move(plans), inputs);
  GpuStep step;
  step.T = static_cast<std::int32_t>(batch.tokens.size());
  step.n = static_cast<std::int32_t>(batch.logit_rows.size());
  step.B = static_cast<std::int32_t>(batch.kv_len.size());
  step.M = batch.max_blocks;
  add_batch(context, batch, choices, step, inputs);
  for (const AttentionKind& kind : context.kinds)
    plan_attention(attention_of(context, batch, kind), 0, step.T, context, inputs,
                   step.attention.emplace_back());
  return step;
}

}  // namespace kvhive
