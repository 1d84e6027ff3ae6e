#pragma once
// Clears marks in the index that no hint needs (pool/prefix_index.hpp). A bucket is marked when it
// overflows, for example because many processes compute the same prompt at once, and each lookup
// there then reads a second bucket. Without this, ever more buckets would be marked.

#include <cstddef>

#include "pool/pool_memory.hpp"

namespace kvhive {

struct IndexMarks {
  std::size_t buckets = 0;
  std::size_t marked = 0;
};

/// Counts the marked buckets. Only reads.
IndexMarks count_marks(const PoolMemory& memory);

struct ClearedMarks {
  std::size_t cleared = 0;   ///< no hint needed them
  std::size_t restored = 0;  ///< of those cleared now, or by a cleaner that was killed: needed
};

/// Clears the marks that no hint needs, while engines work. If the process is killed on the way,
/// some published blocks may not be found until this is called again; nothing else depends on it.
/// Only one process at a time may call it (the steward).
///
/// \cost  two passes over the descriptors, with one cache miss in the index per published block
ClearedMarks clear_marks(const PoolMemory& memory);

}  // namespace kvhive
