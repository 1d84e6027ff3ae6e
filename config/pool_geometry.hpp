#pragma once
// The sizes and types of a pool. They are fixed when it is created and compared when a process
// attaches.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ids.hpp"
#include "base/unique_fd.hpp"
#include "config/cache_groups.hpp"
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

/// Fixed at creation. Two processes may share a pool only if theirs are equal (invariant 7).
struct PoolGeometry {
  std::uint32_t device_blocks = 0;     ///< D, the null block included; at least 2
  std::uint32_t host_blocks = 0;       ///< H, may be 0
  std::uint32_t tokens_per_block = 0;  ///< S
  /// Of one block, so of the layers of one group; block_bytes() == 0 for a pool without payload
  /// (replay).
  KvLayout kv;
  std::uint64_t fingerprint = 0;  ///< of model, dtype and layout (models/fingerprint.hpp)
  CacheGroups groups{};
  DeviceKind device = DeviceKind::cpu;
  /// By the domain's number: what it may have of the device tier. All zero = no domain has limits.
  std::array<BlockLimits, kLimitedDomains> limits{};

  std::uint32_t total_blocks() const { return device_blocks + host_blocks; }
  /// The domains with lower numbers than this are counted one by one; 0 = none has limits.
  std::uint32_t limited_domains() const {
    std::uint32_t count = kLimitedDomains;
    while (count != 0 && limits[count - 1] == BlockLimits{}) --count;
    return count;
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
