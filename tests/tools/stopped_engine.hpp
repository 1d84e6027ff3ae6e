#pragma once
// An engine that does not run, so that what it has stays as it is while a test looks.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/signal_process.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// Stopped while this object lives.
class StoppedEngine {
 public:
  StoppedEngine(const Daemon& daemon, std::uint32_t engine) : pid_(daemon.pid_of(engine)) {
    signal_process(pid_, SIGSTOP);
    EXPECT_TRUE(eventually([this] { return state_of(pid_) == 'T'; }));
  }
  StoppedEngine(const StoppedEngine&) = delete;
  StoppedEngine& operator=(const StoppedEngine&) = delete;
  ~StoppedEngine() { signal_process(pid_, SIGCONT); }

 private:
  pid_t pid_;
};

}  // namespace kvhive::testing
