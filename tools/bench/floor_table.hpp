#pragma once
// The least that a hit can cost: one hash, one cache line, one locked instruction per block. It is
// a flat table in shared memory that never evicts, compares only hashes, and does not survive a
// crash. The pool's match is compared with it.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "base/memory/memory_object.hpp"
#include "base/prefetch.hpp"

namespace kvhive::bench {

class FloorTable {
 public:
  static constexpr std::size_t kTokens = 16;  ///< per block

  explicit FloorTable(std::size_t blocks)
      : mask_(std::bit_ceil(2 * blocks) - 1),
        fd_(*create_memory("floor", bytes(), Pages::huge)),
        map_(*MappedMemory::map(fd_.get(), bytes(), Access::read_write, "floor")),
        slots_(reinterpret_cast<Slot*>(map_.data())) {
    std::memset(map_.data(), 0, map_.size());
  }

  void insert(std::span<const TokenId> tokens) {
    Hash hash{};
    for (std::size_t i = 0; i < tokens.size(); i += kTokens) {
      hash = child(hash, &tokens[i]);
      Slot* slot = find(hash);
      slot->low.store(hash.low64);
      slot->high = hash.high64;
    }
  }

  /// Adds a reference to every block of a prompt. The prompt must be in the table.
  void match(std::span<const TokenId> tokens) {
    constexpr std::size_t kAhead = 16;
    const std::size_t blocks = tokens.size() / kTokens;
    hashes_.resize(blocks);
    found_.resize(blocks);
    Hash hash{};
    for (std::size_t i = 0; i < blocks + kAhead; ++i) {
      if (i < blocks) {
        hashes_[i] = hash = child(hash, &tokens[i * kTokens]);
        prefetch(&slots_[hash.low64 & mask_]);
      }
      if (i < kAhead) continue;
      found_[i - kAhead] = find(hashes_[i - kAhead]);
      found_[i - kAhead]->references.fetch_add(1, std::memory_order_acquire);
    }
  }

  void release() {
    for (Slot* slot : found_) slot->references.fetch_sub(1);
  }

 private:
  using Hash = XXH128_hash_t;
  struct alignas(32) Slot {
    std::atomic<std::uint64_t> low;
    std::uint64_t high;
    std::atomic<std::uint32_t> references;
    std::uint32_t block;
  };

  std::size_t bytes() const { return (mask_ + 1) * sizeof(Slot); }

  static Hash child(Hash parent, const TokenId* tokens) {
    std::array<std::byte, sizeof parent + kTokens * sizeof(TokenId)> input;
    std::memcpy(input.data(), &parent, sizeof parent);
    std::memcpy(input.data() + sizeof parent, tokens, kTokens * sizeof(TokenId));
    return XXH3_128bits(input.data(), input.size());
  }

  Slot* find(Hash hash) const {
    for (std::size_t i = hash.low64;; ++i) {
      Slot& slot = slots_[i & mask_];
      const std::uint64_t low = slot.low.load(std::memory_order_acquire);
      if (low == 0 || (low == hash.low64 && slot.high == hash.high64)) return &slot;
    }
  }

  std::size_t mask_;
  UniqueFd fd_;
  MappedMemory map_;
  Slot* slots_;
  std::vector<Hash> hashes_;
  std::vector<Slot*> found_;
};

}  // namespace kvhive::bench
