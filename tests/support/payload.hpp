#pragma once
// The oracle for KV bytes: a block's bytes are a function of its name, so a process that finds a
// block can check every byte.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hashing/block_hash.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive::testing {

inline std::size_t payload_words(const PoolMemory& memory) {
  return memory.geometry().models[0].kv.block_bytes() / 8;
}

inline std::byte* payload_of(const PoolMemory& memory, BlockId block) {
  const Tier tier = memory.tier_of(block);
  const std::size_t place = block.value - memory.tier_layout(tier).first_block;
  return memory.arena(tier) + place * memory.geometry().models[0].kv.block_bytes();
}

/// The i-th word of the block with this name.
inline std::uint64_t payload_word(Hash128 name, std::size_t i) {
  return (name.low ^ i * 0x9e3779b97f4a7c15ull) + name.high;
}

// Plain memory accesses, as an engine's kernels make them. The pool promises that no other process
// writes the block meanwhile.
inline void fill_payload(const PoolMemory& memory, BlockId block, Hash128 name) {
  for (std::size_t i = 0; i < payload_words(memory); ++i) {
    const std::uint64_t word = payload_word(name, i);
    std::memcpy(payload_of(memory, block) + i * 8, &word, 8);
  }
}

inline bool is_payload_right(const PoolMemory& memory, BlockId block, Hash128 name) {
  bool is_right = true;
  for (std::size_t i = 0; i < payload_words(memory); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, payload_of(memory, block) + i * 8, 8);
    is_right &= word == payload_word(name, i);
  }
  return is_right;
}

inline void copy_payload(const PoolMemory& memory, BlockId from, BlockId to) {
  std::memcpy(payload_of(memory, to), payload_of(memory, from), payload_words(memory) * 8);
}

}  // namespace kvhive::testing
