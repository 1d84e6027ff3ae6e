#include "actors/step_batch.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace kvhive {

StepBatch::StepBatch(const StepPlan& plan, std::uint32_t block_size, std::uint32_t groups)
    : sampled_(sampled_rows(plan)), groups_(groups) {
  for (const auto& work : plan.work) {
    KV_CHECK(work.blocks.size() % groups_ == 0, work.blocks.size(), groups_);
    max_blocks_ = std::max(max_blocks_, work.blocks.size() / groups_);
    add(work);
  }
  for (const SampledRow& row : sampled_)
    logit_rows_.push_back(query_start_[static_cast<std::size_t>(row.work - plan.work.data())] +
                          static_cast<std::int32_t>(row.row));
  for (std::size_t group = 0; group < groups_; ++group) add_tables(plan, group, block_size);
}

void StepBatch::add(const ScheduledSequence& work) {
  for (std::size_t i = 0; i < work.tokens.size(); ++i) {
    const std::size_t place = work.start + i;
    if (work.embedded && place < work.embedded->rows()) {
      embedded_.push_back({tokens_.size(), work.embedded->row(place)});
      tokens_.push_back(0);
    } else {
      tokens_.push_back(work.tokens[i]);
    }
    positions_.push_back(static_cast<std::int32_t>(place));
  }
  query_start_.push_back(static_cast<std::int32_t>(tokens_.size()));
  kv_len_.push_back(static_cast<std::int32_t>(work.start + work.tokens.size()));
  adapters_.push_back(work.adapter);
  has_adapters_ |= work.adapter >= 0;
}

void StepBatch::add_tables(const StepPlan& plan, std::size_t group, std::size_t block_size) {
  for (const auto& work : plan.work) {
    const std::size_t blocks = work.blocks.size() / groups_;
    const auto table = work.blocks.begin() + static_cast<std::ptrdiff_t>(group * blocks);
    for (std::size_t i = 0; i < work.tokens.size(); ++i) {
      const std::size_t position = work.start + i;
      const BlockId block = table[static_cast<std::ptrdiff_t>(position / block_size)];
      slot_mapping_.push_back(
          static_cast<std::int64_t>(block.value * block_size + position % block_size));
    }
    block_table_.insert(block_table_.end(), table, table + static_cast<std::ptrdiff_t>(blocks));
    block_table_.insert(block_table_.end(), max_blocks_ - blocks, kNullBlock);
  }
}

}  // namespace kvhive
