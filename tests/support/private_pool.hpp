#pragma once
// A small pool of a test's own.

#include <cstdint>
#include <utility>

#include "base/check.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

/// A geometry with 4 tokens and 256 bytes of payload a block, unless told otherwise.
inline PoolGeometry small_geometry(std::uint32_t device_blocks, std::uint32_t host_blocks = 0,
                                   std::uint32_t tokens_per_block = 4,
                                   std::uint32_t head_size = 8) {
  PoolGeometry geometry;
  geometry.device_blocks = device_blocks;
  geometry.host_blocks = host_blocks;
  geometry.tokens_per_block = tokens_per_block;
  geometry.kv = {.layers = 1,
                 .kv_heads = 1,
                 .head_size = head_size,
                 .block_size = tokens_per_block,
                 .dtype = Dtype::f32};
  geometry.fingerprint = 0x1234;
  return geometry;
}

/// A formatted pool nobody else can reach, but forked children.
inline PoolMemory private_pool(const PoolGeometry& geometry) {
  auto memory = PoolMemory::create_private(geometry);
  KV_CHECK(memory.has_value(), memory.error().text);
  return std::move(*memory);
}

/// What the keeper does when it gives a slot away, and a process when it arrives.
inline void occupy(const PoolMemory& memory, ProcessSlot slot, std::uint32_t pid = 1) {
  memory.control().processes[slot.value].pid.store(pid, std::memory_order_release);
}

}  // namespace kvhive::testing
