#pragma once
// Makes small pools for one test.

#include <cstdint>
#include <random>
#include <utility>

#include "base/check.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

/// A geometry; by default with 4 tokens and 256 bytes of payload per block.
inline PoolGeometry small_geometry(std::uint32_t device_blocks, std::uint32_t host_blocks = 0,
                                   std::uint32_t tokens_per_block = 4,
                                   std::uint32_t head_size = 8) {
  PoolGeometry geometry;
  geometry.device_blocks = device_blocks;
  geometry.host_blocks = host_blocks;
  geometry.models[0].tokens_per_block = tokens_per_block;
  geometry.models[0].kv = {.layers = 1,
                           .kv_heads = 1,
                           .head_size = head_size,
                           .block_size = tokens_per_block,
                           .dtype = Dtype::f32};
  geometry.models[0].fingerprint = 0x1234;
  return geometry;
}

/// A formatted pool that only this process and its forked children can reach.
inline PoolMemory private_pool(const PoolGeometry& geometry) {
  auto memory = PoolMemory::create_private(geometry);
  KV_CHECK(memory.has_value(), memory.error().text);
  return std::move(*memory);
}

/// The same, whose names, and so their places in the index, are the same in each run with this
/// seed. Else a test that fails because two contents meet in a bucket cannot be run again.
inline PoolMemory private_pool(const PoolGeometry& geometry, std::uint64_t seed) {
  PoolMemory memory = private_pool(geometry);
  PoolHeader& header = memory.control().header;
  std::mt19937_64 random(seed);
  for (auto& byte : header.secret.bytes) byte = static_cast<std::byte>(random());
  header.checksum = checksum_of(header);
  memory.control().copy = header;
  return memory;
}

/// Marks a slot as used by `pid`, as a process does when it signs in.
inline void occupy(const PoolMemory& memory, ProcessSlot slot, std::uint32_t pid = 1) {
  memory.control().processes[slot.value].pid.store(pid, std::memory_order_release);
}

}  // namespace kvhive::testing
