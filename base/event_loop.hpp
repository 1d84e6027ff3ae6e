#pragma once
// What one thread waits for: descriptors that can be read, and the time. The keeper and the
// engine's port live on one each.

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

  /// What an exception does that a handler lets out.
  enum class Escape : std::uint8_t {
    is_logged,   ///< ends that one event: nobody else's watch must suffer
    leaves_run,  ///< ends the loop: for a process that is easier replaced than trusted to go on
  };

  static Expected<EventLoop> create(Escape escape = Escape::is_logged);

  /// Calls `on_ready` in run() whenever `fd` can be read or its peer hangs up. The caller keeps the
  /// descriptor open, and unwatches before closing it. One watch a descriptor.
  void watch(int fd, Handler on_ready);
  /// Allowed at any time, also in the watch's own handler; events that were already on their way
  /// are dropped, even if the number has been given to another descriptor meanwhile.
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
