#pragma once
// Forked processes for work that a stranger can make last as long as it likes. Nobody waits for
// them, and they have no descriptors but those that they need.

#include <sys/types.h>

#include <functional>
#include <map>
#include <vector>

#include "base/loop/event_loop.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class Expendables {
 public:
  explicit Expendables(EventLoop& loop) : loop_(loop) {}
  Expendables(const Expendables&) = delete;
  Expendables& operator=(const Expendables&) = delete;
  /// The processes may go on; on_end() is not called any more.
  ~Expendables();

  /// Forks a process that has only the descriptors in `kept`, calls `work` and exits with its
  /// result.
  /// \param on_end  called on the event loop, with the status that waitpid() tells
  [[nodiscard]] Expected<void> start(std::vector<int> kept, const std::function<int()>& work,
                                     std::function<void(int status)> on_end);
  /// How many there are now.
  std::size_t count() const { return processes_.size(); }

 private:
  struct Process {
    UniqueFd pidfd;
    std::function<void(int)> on_end;
  };
  void on_end(pid_t pid);

  EventLoop& loop_;
  std::map<pid_t, Process> processes_;
  std::vector<pid_t> unwatched_;  ///< killed, for want of a descriptor; collected later
};

}  // namespace kvhive
