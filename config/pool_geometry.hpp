#pragma once
// The sizes and types of a pool. They are fixed when it is created and compared when a process
// attaches.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.hpp"
#include "base/unique_fd.hpp"
#include "config/cache_groups.hpp"
#include "config/choices.hpp"
#include "config/cpu_kernels.hpp"
#include "config/domains/block_share.hpp"
#include "config/kv_layout.hpp"

namespace kvhive {

/// What the device tier is made of.
enum class DeviceKind : std::uint8_t {
  cpu = 0,   ///< memory that everybody maps
  cuda = 1,  ///< a GPU's, shared by descriptors that only its driver can map
};
constexpr std::string_view to_string(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}
/// Memory of a GPU is made in multiples of this, on all there are.
inline constexpr std::size_t kDeviceGranularity = std::size_t{2} << 20;

/// A block's number and one bit more go into half a word (pool/prefix_index.hpp).
inline constexpr std::uint32_t kMostBlocks = 1u << 30;

/// What a pool holds of one model.
struct ModelCache {
  std::uint32_t tokens_per_block = 0;  ///< S
  /// Of one block, so of the layers of one group; block_bytes() == 0 for a pool without payload
  /// (replay).
  KvLayout kv;
  std::uint64_t fingerprint = 0;  ///< of model, dtype and layout (models/fingerprint.hpp)
  CacheGroups groups{};

  friend bool operator==(const ModelCache&, const ModelCache&) = default;
};

inline constexpr std::size_t kMostModels = 8;

/// Fixed at creation. Two processes may share a pool only if theirs are equal (invariant 7).
///
/// The blocks of all models have the same number of bytes, so that any block serves any model, but
/// each model has its own number of tokens in them. A block's group says whose it is: the models'
/// groups are numbered through (CacheGroups::first).
struct PoolGeometry {
  std::uint32_t device_blocks = 0;  ///< D, the null block included; at least 2
  std::uint32_t host_blocks = 0;    ///< H, may be 0
  std::uint32_t model_count = 1;
  std::array<ModelCache, kMostModels> models{};  ///< by ModelId
  DeviceKind device = DeviceKind::cpu;
  /// What all engines compute with, so that each continues what another has begun bit by bit. On a
  /// GPU it says nothing and is 0.
  CpuKernels cpu_kernels{};
  /// By the domain's number: what it may have of the device tier. All zero = no domain has limits.
  std::array<BlockLimits, kLimitedDomains> limits{};
  /// By ModelId: how many blocks of the device tier other models leave it. All zero = none has a
  /// minimum.
  std::array<std::uint32_t, kMostModels> model_minimums{};
  EvictionPolicy eviction_policy{};  ///< of both tiers
  HashAlgorithm hash_algorithm{};    ///< of the blocks' names
  /// One block in so many of the device tier is measured (pool/block_lives.hpp). 0 = none is.
  std::uint32_t life_stride = 0;

  std::uint32_t total_blocks() const { return device_blocks + host_blocks; }
  std::size_t block_bytes() const { return models[0].kv.block_bytes(); }
  std::span<const ModelCache> all_models() const { return {models.data(), model_count}; }
  const ModelCache& operator[](ModelId model) const { return models[model.value]; }
  /// Of all models.
  std::uint32_t group_count() const;
  bool has(GroupId group) const { return group.value < group_count(); }
  /// Whose group it is. The first model, if there is no such group.
  ModelId model_of(GroupId group) const;
  const CacheGroup& group(GroupId group) const { return (*this)[model_of(group)].groups[group]; }
  /// The most that a block of any model has.
  std::uint32_t most_tokens_per_block() const;
  /// The domains with lower numbers than this are counted one by one; 0 = none has limits.
  std::uint32_t limited_domains() const {
    std::uint32_t count = kLimitedDomains;
    while (count != 0 && limits[count - 1] == BlockLimits{}) --count;
    return count;
  }
  bool has_model_minimums() const {
    return model_minimums != std::array<std::uint32_t, kMostModels>{};
  }
  BlockLimits limits_of(DomainId domain) const {
    return domain.value < kLimitedDomains ? limits[domain.value] : BlockLimits{};
  }
  friend bool operator==(const PoolGeometry&, const PoolGeometry&) = default;
};

/// The memory objects of a pool.
enum class PoolObject : std::uint8_t { control, metadata, tokens, device, host };
inline constexpr std::size_t kPoolObjects = 5;

/// Descriptors of the objects, by PoolObject. Empty where there is none (no payload, no host tier)
/// or it is withheld.
using PoolFds = std::array<UniqueFd, kPoolObjects>;

}  // namespace kvhive
