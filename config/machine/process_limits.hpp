#pragma once
// Limits that the system sets for a process (ulimit). They are checked at start, so that the
// operator gets a line with a number and a remedy, and not a signal or a failing system call later.

#include <cstddef>
#include <cstdint>

#include "base/expected.hpp"

namespace kvhive {

struct ProcessLimits {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t descriptors = kNone;    ///< RLIMIT_NOFILE
  std::uint64_t address_space = kNone;  ///< RLIMIT_AS, bytes
  std::uint64_t file_size = kNone;      ///< RLIMIT_FSIZE, bytes; counts for memory objects, too
  std::uint64_t locked_memory = kNone;  ///< RLIMIT_MEMLOCK, bytes
};

/// This process's limits, after raising those of descriptors and locked memory as far as the system
/// allows.
ProcessLimits take_process_limits();

/// Descriptors: enough for the pool, these engines and a client.
[[nodiscard]] Expected<void> check_descriptors(const ProcessLimits& limits, std::uint32_t engines);

/// Bytes: each engine maps pool and weights, and the largest object is a file to the system.
[[nodiscard]] Expected<void> check_bytes(const ProcessLimits& limits, std::size_t mapped,
                                         std::size_t largest_object);

/// Bytes of another object, which the error calls `what`.
[[nodiscard]] Expected<void> check_file_size(const ProcessLimits& limits, const std::string& what,
                                             std::size_t bytes,
                                             const std::string& remedy = " to unlimited");

/// Bytes that a process of the pool locks (Options::lock_metadata).
[[nodiscard]] Expected<void> check_locked_bytes(const ProcessLimits& limits, std::size_t bytes);

/// If memory runs out, the kernel ends this process rather than one that did not call this.
void offer_to_oom_killer();

/// From now on this process writes no core dump, and only root can debug it: its memory contains
/// what other users have sent. Does nothing under sanitizers, which debug themselves.
void forbid_core_dumps();

/// If address space is limited (ulimit -v), all threads share one heap from now on: the C library
/// gives each thread that allocates 64 MiB of its own, and what try_threads() found would be gone.
/// To be called before there are threads.
void keep_one_heap();

/// How many more descriptors this process may open. `newest` is the descriptor that it opened last:
/// the kernel always gives the lowest unused number, so at most `newest` others are open below it.
std::size_t descriptors_left(int newest);

/// Makes the kernel's table of this process's descriptors as large as its limit allows now, at most
/// 65,536 rows. Later, each doubling would have a thread that opens one wait until every processor
/// has been elsewhere (synchronize_rcu): 8 ms, and a third of a second where strangers want that.
void take_descriptor_table();

/// Starts so many threads, to see whether it can be done, and ends them. For an engine: CAF hangs
/// if it gets only some of its threads.
[[nodiscard]] Expected<void> try_threads(std::size_t count);

}  // namespace kvhive
