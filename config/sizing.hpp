#pragma once
// How many blocks the memory holds, as vLLM computes it (v1/core/kv_cache_utils.py
// get_kv_cache_config).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/expected.hpp"
#include "config/cache_groups.hpp"
#include "config/kv_layout.hpp"
#include "config/options.hpp"
#include "config/pool_geometry.hpp"

namespace kvhive {

/// The memory of the device and what the engines need of it, in bytes.
struct MemoryFigures {
  /// Of the device (on the CPU: the machine, or its cgroup if that is smaller).
  std::size_t total = 0;
  std::size_t available = 0;  ///< now, other programs counted
  std::size_t weights = 0;    ///< shared by all engines
  /// Private memory of one engine at its largest step, measured by a profile run; of several models
  /// the mean.
  std::size_t engine_peak = 0;
  std::string bound = "the machine";  ///< what leaves no more than `available`
};

/// An error that says what is needed, what there is, under which limit, and what to change.
[[nodiscard]] Expected<void> check_room(std::size_t needed, const MemoryFigures& memory);

struct PoolSize {
  std::uint32_t device_blocks = 0;  ///< the null block included
  std::uint32_t host_blocks = 0;
};

/// The most blocks that one sequence of so many tokens holds at a time, in all groups.
std::size_t blocks_of_a_sequence(const Options& options, const KvLayout& layout,
                                 const CacheGroups& groups, std::size_t tokens);

/// gpu_memory_utilization if the operator gives none: 0.9 of a GPU's free memory; 0.4 of a
/// machine's memory, because other programs need some.
double default_memory_share(DeviceKind device);

/// Whether sizing needs figures that only a profile run can give.
bool needs_profile_run(const Options& options);

/// num_gpu_blocks_override, else kv_cache_memory_bytes / block bytes, else what
/// gpu_memory_utilization (of the machine, or of what is free of a GPU) leaves after weights and
/// the engines' peaks. Errors name what is needed and what there is, and what to change.
[[nodiscard]] Expected<PoolSize> size_pool(const Options& options, DeviceKind device,
                                           std::size_t block_bytes, const MemoryFigures& memory);

/// How many tokens a block of the model has, if blocks have `bytes`: a multiple of what it has in
/// `layout`, as far as they fit, and at most 1024. On a GPU the multiple is a power of two, so that
/// what is a power of two, as its kernels take it, stays one.
std::uint32_t tokens_in(std::size_t bytes, const KvLayout& layout, DeviceKind device);

/// Pads the models' blocks to the same number of bytes.
void equalize(std::span<KvLayout*> layouts);

/// The longest sequence of a model, in tokens: Options::max_model_len, or the most that model and
/// pool allow. Errors: more is asked for.
[[nodiscard]] Expected<std::uint32_t> longest_sequence(const Options& options, const PoolSize& size,
                                                       const KvLayout& layout,
                                                       const CacheGroups& groups,
                                                       std::uint32_t model_positions);

}  // namespace kvhive
