#include "models/forward_batch.hpp"

#include "base/check.hpp"
#include "kernels/mla_row.hpp"

namespace kvhive {

// The kernels' rows are what blocks have room for.
static_assert(kLatentElements == kMlaLatent && kLatentRopeElements == kMlaRope);
static_assert(kLatentScaleGroup == kMlaScaleGroup);
static_assert(latent_row_bytes(Dtype::bf16) == bytes_of(MlaRow::bf16));
static_assert(latent_row_bytes(Dtype::e4m3) == bytes_of(MlaRow::fp8));

void check_batch(const ForwardBatch& batch, const ModelConfig& config, const LayerGroups& groups,
                 const KvLayout& layout) {
  const std::size_t tokens = batch.tokens.size();
  const std::size_t count = groups.groups.count;
  KvLayout expected = kv_layout(config, groups, layout.block_size, layout.dtype);
  expected.pages = layout.pages;
  expected.padding = layout.padding;
  KV_CHECK(layout == expected, layout.layers, layout.kv_heads, layout.head_size);
  KV_CHECK(batch.positions.size() == tokens, batch.positions.size(), tokens);
  KV_CHECK(batch.slot_mapping.size() == count * tokens, batch.slot_mapping.size(), count, tokens);
  KV_CHECK(batch.query_start.size() == batch.kv_len.size() + 1, batch.query_start.size(),
           batch.kv_len.size());
  KV_CHECK(std::size_t(batch.query_start.back()) == tokens, batch.query_start.back(), tokens);
  KV_CHECK(batch.block_table.size() == count * batch.kv_len.size() * batch.max_blocks,
           batch.block_table.size(), count, batch.kv_len.size(), batch.max_blocks);
  KV_CHECK(batch.adapters.empty() || batch.adapters.size() == batch.kv_len.size(),
           batch.adapters.size(), batch.kv_len.size());
  for (const TokenId token : batch.tokens)
    KV_CHECK(token >= 0 && token < config.vocab_size, token, config.vocab_size);
  for (const EmbeddedRow& each : batch.embedded)
    KV_CHECK(each.row < tokens && each.values.size() == std::size_t(config.hidden_size), each.row,
             each.values.size());
  for (const std::int32_t row : batch.logit_rows)
    KV_CHECK(row >= 0 && std::size_t(row) < tokens, row, tokens);
}

PagedKv layer_view(std::byte* kv_base, const KvLayout& layout, std::int32_t slot) {
  const std::size_t token_bytes = layout.head_size * bytes_of(layout.dtype);
  std::byte* k = kv_base + slot * layout.layer_bytes();
  const auto block_stride = static_cast<std::int64_t>(layout.block_bytes());
  KvScales scales;
  if (layout.has_token_scales()) {
    std::byte* behind = k + 2 * layout.plane_bytes();
    scales = {.k = reinterpret_cast<float*>(behind),
              .v = reinterpret_cast<float*>(behind + layout.scales_bytes()),
              .block_stride = block_stride,
              .head_stride = static_cast<std::int64_t>(layout.block_size * sizeof(float)),
              .token_stride = sizeof(float)};
  }
  return {.k = k,
          .v = k + layout.plane_bytes(),
          .block_stride = block_stride,
          .head_stride = static_cast<std::int64_t>(layout.block_size * token_bytes),
          .token_stride = static_cast<std::int64_t>(token_bytes),
          .G = static_cast<std::int32_t>(layout.kv_heads),
          .S = static_cast<std::int32_t>(layout.block_size),
          .D = static_cast<std::int32_t>(layout.head_size),
          .dtype = layout.dtype,
          .layout = layout.pages,
          .scales = scales};
}

PagedLatents latent_view(std::byte* kv_base, const KvLayout& layout, std::int32_t slot) {
  return {.base = kv_base + slot * layout.layer_bytes(),
          .block_stride = static_cast<std::int64_t>(layout.block_bytes()),
          .token_stride = static_cast<std::int64_t>(latent_row_bytes(layout.dtype)),
          .S = static_cast<std::int32_t>(layout.block_size),
          .row = layout.dtype == Dtype::bf16 ? MlaRow::bf16 : MlaRow::fp8};
}

}  // namespace kvhive
