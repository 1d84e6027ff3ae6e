#include "config/pool_geometry.hpp"

#include <algorithm>

namespace kvhive {

std::uint32_t PoolGeometry::group_count() const {
  const CacheGroups& last = models[model_count - 1].groups;
  return last.first + last.count;
}

ModelId PoolGeometry::model_of(GroupId group) const {
  ModelId model;
  for (std::uint8_t m = 1; m < model_count; ++m)
    if (group.value >= models[m].groups.first && has(group)) model = ModelId{m};
  return model;
}

std::uint32_t PoolGeometry::most_tokens_per_block() const {
  return std::ranges::max(all_models(), {}, &ModelCache::tokens_per_block).tokens_per_block;
}

}  // namespace kvhive
