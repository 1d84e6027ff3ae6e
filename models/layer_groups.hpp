#pragma once
// Which cache group each layer of a model is in, and where in that group's blocks.
//
// Source: vLLM v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_page_size.

#include <cstdint>
#include <vector>

#include "base/expected.hpp"
#include "config/cache_groups.hpp"
#include "config/kv_layout.hpp"
#include "models/config/model_config.hpp"

namespace kvhive {

/// A layer's cache: in the blocks of a group, the part of the group's layer `slot`.
struct LayerPlace {
  GroupId group{};
  std::int32_t slot = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

struct LayerGroups {
  CacheGroups groups;
  std::vector<LayerPlace> places;  ///< by layer
  std::uint32_t layers = 0;        ///< that a block has room for; a group may have fewer
};

/// Layers whose attention is planned at once: they have one table, and one window or chunk.
struct AttentionKind {
  GroupId group{};
  std::int32_t window = 0;  ///< tokens, 0 = none
  std::int32_t chunk = 0;   ///< tokens, 0 = none
  friend bool operator==(const AttentionKind&, const AttentionKind&) = default;
};

/// All layers in one group of full attention. Windows and chunks mask, and free nothing.
LayerGroups one_group(const ModelConfig& config);

/// Layers with the same window, or chunk, in groups of equal size. With several of them: as many
/// layers in a group as the rarest has, or as the most frequent one has if these are less than a
/// quarter more. A window that no sequence outgrows is none. Groups get larger where kMostGroups
/// would be exceeded.
LayerGroups group_layers(const ModelConfig& config);

/// The one of these two whose blocks have as many layers as `layout` says.
LayerGroups groups_of(const ModelConfig& config, const KvLayout& layout);

AttentionKind attention_kind(const ModelConfig& config, const LayerGroups& groups,
                             std::int32_t layer);
/// What differs between the model's layers, in the order of its first layers.
std::vector<AttentionKind> attention_kinds(const ModelConfig& config, const LayerGroups& groups);

/// The element type of a model's KV, as --kv-cache-dtype asks for it. With latent attention there
/// are rows of bf16, which `auto` is, and of fp8 (e4m3); an error names what else is asked for.
[[nodiscard]] Expected<Dtype> kv_dtype_of(KvCacheDtype asked, const ModelConfig& config);

/// The cache that these groups need: of the layers of one group.
/// \param dtype  one that kv_dtype_of() returns for this model
KvLayout kv_layout(const ModelConfig& config, const LayerGroups& groups, std::uint32_t block_size,
                   Dtype dtype);
/// The same with the page layout that this CPU's attention reads fastest.
KvLayout fastest_kv_layout(const ModelConfig& config, const LayerGroups& groups,
                           std::uint32_t block_size, Dtype dtype);

}  // namespace kvhive
