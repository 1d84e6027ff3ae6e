#pragma once
// Waits in one thread for descriptors and timers, and calls a handler for each. The keeper and an
// engine's port each run one.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class EventLoop {
 public:
  using Handler = std::function<void()>;

  /// What happens to an exception that leaves a handler.
  enum class Escape : std::uint8_t {
    is_logged,   ///< it ends that event; the other watches go on
    leaves_run,  ///< it ends the loop, for a process that is better replaced than continued
  };

  [[nodiscard]] static Expected<EventLoop> create(Escape escape = Escape::is_logged);

  /// Calls `on_ready` in run() whenever `fd` can be read or its peer hangs up. The caller keeps the
  /// descriptor open, and unwatches it before closing it. A descriptor has at most one watch.
  void watch(int fd, Handler on_ready);
  /// Allowed at any time, also in the watch's own handler. Events that the kernel has reported but
  /// run() has not handled are dropped, even if another descriptor has the same number by now.
  void unwatch(int fd);

  /// Calls `on_time` once in run(), `pause` from now; timers that are due together run in the order
  /// of their times.
  void after(std::chrono::nanoseconds pause, Handler on_time);

  /// Serves until a handler calls stop(); at once if that has happened already.
  void run();
  void stop() { is_stopped_ = true; }

 private:
  struct Watch {
    std::uint32_t number = 0;
    Handler on_ready;
  };
  using Time = std::chrono::steady_clock::time_point;

  EventLoop(Escape escape, UniqueFd epoll, UniqueFd timer)
      : escape_(escape), epoll_(std::move(epoll)), timer_(std::move(timer)) {}
  void dispatch(std::uint64_t event);
  void run_due_timers();
  void set_timer() const;
  void call(const Handler& handler) const;

  Escape escape_;
  UniqueFd epoll_;
  UniqueFd timer_;                ///< set to the earliest of `timers_`
  std::map<int, Watch> watched_;  ///< by descriptor
  std::uint32_t next_watch_ = 0;
  std::multimap<Time, Handler> timers_;
  bool is_stopped_ = false;
};

}  // namespace kvhive
