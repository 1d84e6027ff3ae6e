#include "models/layer_groups.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "base/check.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

CacheGroup kind_of(const ModelConfig& config, std::int32_t layer) {
  const auto is_outgrown = [&](std::int32_t span) {
    return span > 0 && span < config.max_position_embeddings;
  };
  if (const std::int32_t chunk = config.chunk_of(layer); is_outgrown(chunk))
    return {CacheKind::chunked_local, static_cast<std::uint32_t>(chunk)};
  if (const std::int32_t window = config.window_of(layer); is_outgrown(window))
    return {CacheKind::sliding_window, static_cast<std::uint32_t>(window)};
  return {};
}

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

LayerGroups one_group(const ModelConfig& config) {
  LayerGroups groups;
  for (std::int32_t layer = 0; layer < config.layers; ++layer)
    groups.places.push_back({GroupId{}, layer});
  groups.layers = static_cast<std::uint32_t>(config.layers);
  return groups;
}

LayerGroups group_layers(const ModelConfig& config) {
  struct Kind {
    CacheGroup group;
    std::vector<std::int32_t> layers;
  };
  std::vector<Kind> kinds;  // in the order of their first layers
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const CacheGroup group = kind_of(config, layer);
    auto kind = std::ranges::find(kinds, group, &Kind::group);
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {group, {}});
    kind->layers.push_back(layer);
  }
  const auto size = [](const Kind& kind) { return kind.layers.size(); };
  const std::size_t fewest = size(*std::ranges::min_element(kinds, {}, size));
  const std::size_t most = size(*std::ranges::max_element(kinds, {}, size));
  std::size_t in_group = most * 4 < fewest * 5 ? most : fewest;
  const auto groups_with = [&](std::size_t layers) {
    std::size_t count = 0;
    for (const Kind& kind : kinds) count += ceil_div(kind.layers.size(), layers);
    return count;
  };
  while (groups_with(in_group) > kMostGroups) ++in_group;

  LayerGroups result;
  result.groups.count = 0;
  result.layers = static_cast<std::uint32_t>(in_group);
  result.places.resize(static_cast<std::size_t>(config.layers));
  for (const Kind& kind : kinds) {
    const std::size_t count = ceil_div(kind.layers.size(), in_group);
    for (std::size_t i = 0; i < kind.layers.size(); ++i)
      result.places[static_cast<std::size_t>(kind.layers[i])] = {
          GroupId{static_cast<std::uint8_t>(result.groups.count + i % count)},
          static_cast<std::int32_t>(i / count)};
    for (std::size_t g = 0; g < count; ++g) result.groups.group[result.groups.count++] = kind.group;
  }
  return result;
}

LayerGroups groups_of(const ModelConfig& config, const KvLayout& layout) {
  LayerGroups groups = one_group(config);
  return groups.layers == layout.layers ? groups : group_layers(config);
}

AttentionKind attention_kind(const ModelConfig& config, const LayerGroups& groups,
                             std::int32_t layer) {
  return {groups.places[std::size_t(layer)].group, config.window_of(layer), config.chunk_of(layer)};
}

std::vector<AttentionKind> attention_kinds(const ModelConfig& config, const LayerGroups& groups) {
  std::vector<AttentionKind> kinds;
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const AttentionKind kind = attention_kind(config, groups, layer);
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

Expected<Dtype> kv_dtype_of(KvCacheDtype asked, const ModelConfig& config) {
  if (!config.is_latent()) return kv_dtype(asked, config.dtype);
  const Dtype dtype = kv_dtype(asked, Dtype::bf16);
  if (is_latent_dtype(dtype)) return dtype;
  return failure(Errc::unsupported,
                 "kv-cache-dtype '" + std::string(to_string(dtype)) +
                     "': " + std::string(config.architecture->name) +
                     " keeps latent rows, of which there are bfloat16 (auto) and fp8 ones");
}

KvLayout kv_layout(const ModelConfig& config, const LayerGroups& groups, std::uint32_t block_size,
                   Dtype dtype) {
  KV_CHECK(block_size > 0);
  if (config.is_latent()) {
    KV_CHECK(is_latent_dtype(dtype), int(dtype));
    return {.layers = groups.layers,
            .kv_heads = 1,
            .head_size = static_cast<std::uint32_t>(config.latent.row()),
            .block_size = block_size,
            .dtype = dtype,
            .kind = KvKind::latent};
  }
  return {.layers = groups.layers,
          .kv_heads = static_cast<std::uint32_t>(config.kv_heads),
          .head_size = static_cast<std::uint32_t>(config.head_size),
          .block_size = block_size,
          .dtype = dtype};
}

KvLayout fastest_kv_layout(const ModelConfig& config, const LayerGroups& groups,
                           std::uint32_t block_size, Dtype dtype) {
  KvLayout layout = kv_layout(config, groups, block_size, dtype);
  if (config.is_latent()) return layout;
  // The attention that reads packed pages fast has no soft cap.
  if (config.attention_soft_cap > 0) return layout;
  layout.pages =
      fastest_page_layout(static_cast<std::int32_t>(block_size), config.head_size, dtype);
  return layout;
}

}  // namespace kvhive
