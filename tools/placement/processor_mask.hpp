#pragma once
// Binds a process to processors.

#include <sched.h>

#include <vector>

#include "base/expected.hpp"
#include "config/cpu_bind.hpp"

namespace kvhive {

/// A list of processors as the kernel takes it. Nothing of it if the list is empty: any will do.
class ProcessorMask {
 public:
  explicit ProcessorMask(const ProcessorList& processors);

  /// From now on this thread, and those and the processes that it starts, run only there. Allocates
  /// nothing if it succeeds, so it may be called between fork() and exec().
  /// Errors: none of them is granted to this process.
  [[nodiscard]] Expected<void> bind() const;

 private:
  std::vector<cpu_set_t> words_;  ///< each has CPU_SETSIZE bits
};

}  // namespace kvhive
