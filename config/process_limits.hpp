#pragma once
// What the system rations per process (ulimit), looked at before it is needed: at start a number
// and a remedy in one line, rather than a signal or a system call that fails in the middle.

#include <cstddef>
#include <cstdint>

#include "base/expected.hpp"

namespace kvhive {

struct ProcessLimits {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t descriptors = kNone;    ///< RLIMIT_NOFILE
  std::uint64_t address_space = kNone;  ///< RLIMIT_AS, bytes
  std::uint64_t file_size = kNone;      ///< RLIMIT_FSIZE, bytes; counts for memory objects, too
};

/// Ours, after raising the number of descriptors as far as we may.
ProcessLimits take_process_limits();

/// Descriptors: enough for the pool, these engines and a client.
[[nodiscard]] Expected<void> check_descriptors(const ProcessLimits& limits, std::uint32_t engines);

/// Bytes: each engine maps pool and weights, and the largest object is a file to the system.
[[nodiscard]] Expected<void> check_bytes(const ProcessLimits& limits, std::size_t mapped,
                                         std::size_t largest_object);

/// How many descriptors more we may open; what was opened last is `newest`. Descriptors are given
/// out from the lowest: at most `newest` are open below it.
std::size_t descriptors_left(int newest);

/// Starts so many threads, to see whether it can be done, and ends them. For an engine: CAF hangs
/// if it gets only some of its threads.
[[nodiscard]] Expected<void> try_threads(std::size_t count);

}  // namespace kvhive
