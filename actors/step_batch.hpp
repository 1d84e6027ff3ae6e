#pragma once
// Converts a plan's work into the flat arrays that a transformer takes (ForwardBatch).

#include <cstdint>
#include <vector>

#include "actors/messages.hpp"
#include "actors/speculation/accepted.hpp"
#include "models/transformer.hpp"

namespace kvhive {

class StepBatch {
 public:
  /// \param plan  outlives the batch
  StepBatch(const StepPlan& plan, std::uint32_t block_size, std::uint32_t groups = 1);

  /// The batch. It points into this object.
  ForwardBatch view() const {
    return {
        tokens_,
        positions_,
        query_start_,
        kv_len_,
        block_table_,
        slot_mapping_,
        logit_rows_,
        static_cast<std::int32_t>(max_blocks_),
        has_adapters_ ? std::span<const std::int32_t>(adapters_) : std::span<const std::int32_t>(),
        embedded_};
  }
  /// The rows whose logits are wanted, in their order.
  std::span<const SampledRow> sampled() const { return sampled_; }

 private:
  void add(const ScheduledSequence& work);
  void add_tables(const StepPlan& plan, std::size_t group, std::size_t block_size);

  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> query_start_ = {0};
  std::vector<std::int32_t> kv_len_;
  std::vector<BlockId> block_table_;
  std::vector<std::int64_t> slot_mapping_;
  std::vector<SampledRow> sampled_;
  std::vector<std::int32_t> logit_rows_;  ///< of sampled_
  std::vector<std::int32_t> adapters_;
  bool has_adapters_ = false;
  std::vector<EmbeddedRow> embedded_;
  std::size_t groups_;
  std::size_t max_blocks_ = 0;
};

}  // namespace kvhive
