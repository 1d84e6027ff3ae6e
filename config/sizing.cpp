#include "config/sizing.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/byte_size.hpp"
#include "base/round_up.hpp"

namespace kvhive {
namespace {

/// Device memory left for KV once everything else has its share.
Expected<std::size_t> kv_bytes(const Options& options, DeviceKind device,
                               const MemoryFigures& memory) {
  if (options.kv_cache_memory_bytes != 0) return options.kv_cache_memory_bytes;
  // Other programs use memory of the GPU, too: only free memory can be given to the pool.
  const std::size_t whole = device == DeviceKind::cuda ? memory.available : memory.total;
  const double utilization = options.gpu_memory_utilization != 0 ? options.gpu_memory_utilization
                                                                 : default_memory_share(device);
  const auto share = static_cast<std::size_t>(static_cast<double>(whole) * utilization);
  const std::size_t others = memory.weights + options.engines * memory.engine_peak;
  if (share <= others)
    return failure(Errc::out_of_memory,
                   "gpu-memory-utilization " + std::to_string(utilization) + " of " +
                       format_bytes(whole) + " is less than weights (" +
                       format_bytes(memory.weights) + ") and " + std::to_string(options.engines) +
                       " engines (" + format_bytes(memory.engine_peak) +
                       " each) need; raise it, or start fewer engines");
  return share - others;
}

}  // namespace

Expected<void> check_room(std::size_t needed, const MemoryFigures& memory) {
  if (needed <= memory.available) return {};
  return failure(Errc::out_of_memory,
                 "the pool needs " + format_bytes(needed) + ", " + memory.bound + " has " +
                     format_bytes(memory.available) +
                     " available; lower kv-cache-memory-bytes, num-gpu-blocks-override or "
                     "swap-space, or raise that limit");
}

double default_memory_share(DeviceKind device) { return device == DeviceKind::cuda ? 0.9 : 0.4; }

bool needs_profile_run(const Options& options) {
  return options.num_gpu_blocks_override == 0 && options.kv_cache_memory_bytes == 0;
}

std::size_t blocks_of_a_sequence(const Options& options, const KvLayout& layout,
                                 const CacheGroups& groups, std::size_t tokens) {
  return groups.most_blocks(tokens, options.max_num_batched_tokens, layout.block_size);
}

Expected<PoolSize> size_pool(const Options& options, DeviceKind device, std::size_t block_bytes,
                             const MemoryFigures& memory) {
  std::size_t device_blocks = options.num_gpu_blocks_override;
  if (device_blocks == 0) {
    auto bytes = kv_bytes(options, device, memory);
    if (!bytes) return forward_error(bytes);
    device_blocks = *bytes / block_bytes;
  }
  const std::size_t host_blocks = options.swap_space / block_bytes;
  const bool is_one_memory = device != DeviceKind::cuda;
  const std::size_t needed = (device_blocks + (is_one_memory ? host_blocks : 0)) * block_bytes;
  if (auto fits = check_room(needed, memory); !fits) return forward_error(fits);
  // Elsewhere weights are mapped files, which the kernel reads again when it needs their memory.
  if (device == DeviceKind::cuda && needed + memory.weights > memory.available)
    return failure(Errc::out_of_memory,
                   "the pool needs " + format_bytes(needed) + " and weights " +
                       format_bytes(memory.weights) + ", " + memory.bound + " has " +
                       format_bytes(memory.available) +
                       " available; lower kv-cache-memory-bytes or num-gpu-blocks-override, or "
                       "serve fewer models");
  if (device_blocks < 2 || device_blocks + host_blocks > kMostBlocks)
    return failure(Errc::bad_argument, "the pool would have " + std::to_string(device_blocks) +
                                           " device blocks of " + format_bytes(block_bytes) +
                                           "; it takes at least 2 and at most 2^30");

  return PoolSize{static_cast<std::uint32_t>(device_blocks),
                  static_cast<std::uint32_t>(host_blocks)};
}

std::uint32_t tokens_in(std::size_t bytes, const KvLayout& layout, DeviceKind device) {
  constexpr std::size_t kMost = 1024;
  const std::size_t now = layout.block_size;
  std::size_t times = std::min(bytes / layout.block_bytes(), kMost / now);
  if (device == DeviceKind::cuda) times = std::bit_floor(times);
  return static_cast<std::uint32_t>(std::max(times, std::size_t{1}) * now);
}

void equalize(std::span<KvLayout*> layouts) {
  constexpr std::size_t kCacheLine = 64;
  if (layouts.size() == 1) return;
  std::size_t largest = 0;
  for (const KvLayout* layout : layouts)
    largest = std::max(largest, round_up(layout->block_bytes(), kCacheLine));
  for (KvLayout* layout : layouts)
    layout->padding += static_cast<std::uint32_t>(largest - layout->block_bytes());
}

Expected<std::uint32_t> longest_sequence(const Options& options, const PoolSize& size,
                                         const KvLayout& layout, const CacheGroups& groups,
                                         std::uint32_t model_positions) {
  const std::size_t block_bytes = layout.block_bytes(), device_blocks = size.device_blocks;
  const std::size_t held =
      groups.longest_sequence(device_blocks - 1, options.max_num_batched_tokens, layout.block_size,
                              std::max(model_positions, options.max_model_len));
  const std::size_t wanted = options.max_model_len != 0
                                 ? options.max_model_len
                                 : std::min<std::size_t>(model_positions, held);
  if (wanted > model_positions)
    return failure(Errc::bad_argument, "max-model-len: " + std::to_string(wanted) +
                                           " is more than the model's " +
                                           std::to_string(model_positions) + " positions");
  if (wanted > held)
    return failure(
        Errc::bad_argument,
        "max-model-len: one request of " + std::to_string(wanted) + " tokens needs " +
            format_bytes(blocks_of_a_sequence(options, layout, groups, wanted) * block_bytes) +
            " of KV, the pool has " + format_bytes((device_blocks - 1) * block_bytes) +
            "; at most " + std::to_string(held) + " tokens fit");
  return static_cast<std::uint32_t>(wanted);
}

}  // namespace kvhive
