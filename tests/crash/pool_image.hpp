#pragma once
// Copies all bytes of a pool, and writes them into a pool of the same geometry. Shared memory has
// no pointers, so the copy is a pool in exactly the same state.

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "pool/pool_memory.hpp"

namespace kvhive::testing {

using PoolBytes = std::array<std::span<std::byte>, kPoolObjects>;

inline PoolBytes bytes_of(const PoolMemory& memory) {
  const PoolLayout& layout = memory.layout();
  return {std::span(reinterpret_cast<std::byte*>(&memory.control()), layout.control_bytes),
          {reinterpret_cast<std::byte*>(memory.descriptors()), layout.metadata_bytes},
          {reinterpret_cast<std::byte*>(memory.token_row(kNullBlock)), layout.tokens_bytes},
          {memory.arena(Tier::device), layout.device_bytes},
          {memory.arena(Tier::host), layout.host_bytes}};
}

class PoolImage {
 public:
  PoolImage() = default;
  explicit PoolImage(const PoolMemory& memory) { take(memory); }

  void take(const PoolMemory& memory) {
    bytes_.clear();
    for (const auto object : bytes_of(memory))
      bytes_.append(reinterpret_cast<const char*>(object.data()), object.size());
    const PoolLayout& layout = memory.layout();
    journal_ = layout.control_bytes + layout.journal_offset;
    journal_slots_ = layout.journal_slots;
  }
  void put(const PoolMemory& memory) const {
    std::size_t from = 0;
    for (const auto object : bytes_of(memory)) {
      std::memcpy(object.data(), bytes_.data() + from, object.size());
      from += object.size();
    }
  }
  /// Whether the pool is in exactly this state.
  bool is_of(const PoolMemory& memory) const {
    std::size_t from = 0;
    for (const auto object : bytes_of(memory)) {
      if (from + object.size() > bytes_.size() ||
          std::memcmp(object.data(), bytes_.data() + from, object.size()) != 0)
        return false;
      from += object.size();
    }
    return from == bytes_.size();
  }
  /// A hash of the bytes without times: equal for the same work done at another time.
  std::size_t digest() const {
    std::string timeless = bytes_;
    for (std::size_t i = 0; i < journal_slots_; ++i) {
      char* what = &timeless[journal_ + i * sizeof(JournalRecord) + offsetof(JournalRecord, what)];
      std::memset(what + 2, 0, 6);  // all but the last bits (pool/eviction/eviction_journal.cpp)
    }
    return std::hash<std::string_view>{}(timeless);
  }

 private:
  std::string bytes_;
  std::size_t journal_ = 0, journal_slots_ = 0;
};

}  // namespace kvhive::testing
