#include "actors/transformer_runner.hpp"

#include <algorithm>

#include "kernels/block_copy.hpp"

namespace kvhive {

/// The plan's work as one flat batch (the alphabet is kernels/paged_kv.hpp's).
struct TransformerRunner::Batch {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> query_start = {0};
  std::vector<std::int32_t> kv_len;
  std::vector<std::uint32_t> block_table;
  std::vector<std::int64_t> slot_mapping;
  std::vector<std::int32_t> logit_rows;
  std::size_t max_blocks = 0;
};

Expected<std::vector<SampledToken>> TransformerRunner::run(const StepPlan& plan) {
  block_copy_cpu(whole_blocks(arena_, arena_, layout_.block_bytes(), plan.copies));
  if (plan.work.empty()) return std::vector<SampledToken>();

  Batch batch;
  for (const auto& work : plan.work)
    batch.max_blocks = std::max(batch.max_blocks, work.blocks.size());
  for (const auto& work : plan.work) add(batch, work);
  const std::size_t vocab = model_.config().vocab_size;
  logits_.resize(batch.logit_rows.size() * vocab);
  model_.forward(
      {batch.tokens, batch.positions, batch.query_start, batch.kv_len, batch.block_table,
       batch.slot_mapping, batch.logit_rows, static_cast<std::int32_t>(batch.max_blocks)},
      arena_, layout_, logits_);

  std::vector<SampledToken> sampled;
  for (const auto& work : plan.work) {
    if (!work.samples) continue;
    const std::span<const float> logits = std::span(logits_).subspan(sampled.size() * vocab, vocab);
    const Sampled next = sample(logits, work.sampling, work.start + work.tokens.size());
    GeneratedToken token{next.token, next.logprob, {}};
    if (work.logprobs != 0) token.top = top_logprobs(logits, static_cast<int>(work.logprobs));
    sampled.push_back({work.seq, std::move(token)});
  }
  return sampled;
}

void TransformerRunner::add(Batch& batch, const ScheduledSequence& work) const {
  const std::size_t block_size = layout_.block_size;
  for (std::size_t i = 0; i < work.tokens.size(); ++i) {
    const std::size_t position = work.start + i;
    batch.tokens.push_back(work.tokens[i]);
    batch.positions.push_back(static_cast<std::int32_t>(position));
    batch.slot_mapping.push_back(static_cast<std::int64_t>(
        work.blocks[position / block_size] * block_size + position % block_size));
  }
  batch.query_start.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  batch.kv_len.push_back(static_cast<std::int32_t>(work.start + work.tokens.size()));
  batch.block_table.insert(batch.block_table.end(), work.blocks.begin(), work.blocks.end());
  batch.block_table.resize(batch.kv_len.size() * batch.max_blocks, 0);
  if (work.samples) batch.logit_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()) - 1);
}

}  // namespace kvhive
