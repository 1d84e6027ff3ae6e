#include "actors/step_batch.hpp"

#include <algorithm>

namespace kvhive {

StepBatch::StepBatch(const StepPlan& plan, std::uint32_t block_size) {
  for (const auto& work : plan.work) max_blocks_ = std::max(max_blocks_, work.blocks.size());
  for (const auto& work : plan.work) add(work, block_size);
}

void StepBatch::add(const ScheduledSequence& work, std::size_t block_size) {
  for (std::size_t i = 0; i < work.tokens.size(); ++i) {
    const std::size_t position = work.start + i;
    tokens_.push_back(work.tokens[i]);
    positions_.push_back(static_cast<std::int32_t>(position));
    slot_mapping_.push_back(static_cast<std::int64_t>(
        work.blocks[position / block_size].value * block_size + position % block_size));
  }
  query_start_.push_back(static_cast<std::int32_t>(tokens_.size()));
  kv_len_.push_back(static_cast<std::int32_t>(work.start + work.tokens.size()));
  block_table_.insert(block_table_.end(), work.blocks.begin(), work.blocks.end());
  block_table_.resize(kv_len_.size() * max_blocks_, kNullBlock);
  if (work.samples) logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
}

}  // namespace kvhive
