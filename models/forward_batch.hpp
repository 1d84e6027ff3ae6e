#pragma once
// What every transformer takes: one step's tokens, and the layers of the cache they go to.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.hpp"
#include "config/kv_layout.hpp"
#include "kernels/paged_kv.hpp"
#include "kernels/paged_mla.hpp"
#include "models/layer_groups.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// A row of a batch whose embedding is given, instead of looked up for its token.
struct EmbeddedRow {
  std::size_t row = 0;
  std::span<const float> values{};  // [hidden_size]
};

/// One step's work for a whole batch. Borrowed spans, alive during forward(). Alphabet as in
/// kernels/paged_kv.hpp; N is the number of cache groups.
struct ForwardBatch {
  std::span<const TokenId> tokens;             // [T]
  std::span<const std::int32_t> positions;     // [T]
  std::span<const std::int32_t> query_start;   // [B+1]
  std::span<const std::int32_t> kv_len;        // [B]
  std::span<const BlockId> block_table;        // [N, B, M]
  std::span<const std::int64_t> slot_mapping;  // [N, T]
  std::span<const std::int32_t> logit_rows;    // rows of [0,T) whose logits are wanted
  std::int32_t max_blocks = 0;                 // M
  /// [B] which adapter a sequence is computed with, -1 = none; empty = none for any
  std::span<const std::int32_t> adapters{};
  /// In the order of their rows. What `tokens` says of these does not count, but is a token.
  std::span<const EmbeddedRow> embedded{};

  std::span<const BlockId> table_of(GroupId group) const {
    const std::size_t entries = kv_len.size() * static_cast<std::size_t>(max_blocks);
    return block_table.subspan(group.value * entries, entries);
  }
  std::span<const std::int64_t> slots_of(GroupId group) const {
    return slot_mapping.subspan(group.value * tokens.size(), tokens.size());
  }
};

/// Ends the process if the batch contradicts itself, the model or the cache's layout.
void check_batch(const ForwardBatch& batch, const ModelConfig& config, const LayerGroups& groups,
                 const KvLayout& layout);

/// One layer of a group's blocks (LayerPlace::slot), in an arena whose block 0 is at `kv_base`.
PagedKv layer_view(std::byte* kv_base, const KvLayout& layout, std::int32_t slot);
/// The same of latent rows.
PagedLatents latent_view(std::byte* kv_base, const KvLayout& layout, std::int32_t slot);

}  // namespace kvhive
