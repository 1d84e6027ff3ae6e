#pragma once
// Collects, for the front, the processes that killed keepers have left, and the killed keepers, and
// writes down how they have ended. In a thread of its own (reaper.hpp says why): whatever takes the
// kernel long, the next keeper is started at once.

#include <sys/types.h>

#include <functional>

#include "tools/keeper/succession/orphan_ends.hpp"

namespace kvhive {

class OrphanCollector {
 public:
  /// \param ends  must outlive this object
  explicit OrphanCollector(OrphanEnds& ends);
  /// Does not wait for the thread.
  ~OrphanCollector();
  OrphanCollector(const OrphanCollector&) = delete;
  OrphanCollector& operator=(const OrphanCollector&) = delete;

  /// Calls `start`, which makes a process like this one (its memory is copied, too), and returns
  /// what it returns. The child is not collected before the next one is started.
  pid_t start_spared(const std::function<pid_t()>& start);

  /// To be called when children may have ended. If the system gives no thread, they are collected
  /// before this returns.
  void wake();

  /// Collects what has ended, the spared one too, before this returns.
  void collect_all();

 private:
  struct State;
  State& state_;  ///< stays: the thread may be in the kernel when this object ends
};

}  // namespace kvhive
