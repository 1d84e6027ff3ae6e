#pragma once
// An event loop: waits in one thread for descriptors, timers and posts of other threads, and calls
// a handler for each event. The keeper runs one event loop, and so does each engine, for its port.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class EventLoop {
 public:
  using Handler = std::function<void()>;

  /// What happens to an exception that leaves a handler.
  enum class Escape : std::uint8_t {
    is_logged,   ///< run() logs it and goes on with the next event
    leaves_run,  ///< it leaves run(), for a process that should end then and be started again
  };

  [[nodiscard]] static Expected<EventLoop> create(Escape escape = Escape::is_logged);

  /// From now on run() calls `on_ready` whenever `fd` is readable or its peer has closed the
  /// connection. The caller keeps the descriptor open, and calls unwatch() before it closes it. A
  /// descriptor has at most one watch.
  void watch(int fd, Handler on_ready);
  /// The same, but calls `on_ready` once for what happened since the last call, whether or not `fd`
  /// is still readable. For a descriptor that must not be read (ipc/channel/doorbell.hpp).
  void watch_edges(int fd, Handler on_edge);
  /// Ends a watch. Allowed at any time, also in the watch's own handler. Events of this watch that
  /// the kernel has reported but run() has not handled are dropped, even if a new descriptor has
  /// the same number by now.
  void unwatch(int fd);

  /// run() calls `on_time` once, when the time `pause` has passed. If several timers are due, they
  /// run in the order of their times. Without a pause it is called when what has happened by now
  /// has been handled: no timer is set, which costs more than most events.
  void after(std::chrono::nanoseconds pause, Handler on_time);

  /// run() calls `handler` soon. The only function that other threads may call; the loop outlives
  /// them.
  void post(Handler handler);

  /// run() calls `handler` after each event that it has handled.
  void after_each(Handler handler) { after_each_ = std::move(handler); }

  /// Handles events until stop() is called. Returns at once if stop() was called before. May be
  /// called again.
  void run();
  void stop() { is_stopped_ = true; }

 private:
  struct Watch {
    std::uint32_t number = 0;
    Handler on_ready;
  };
  using Time = std::chrono::steady_clock::time_point;

  /// What other threads have posted.
  struct Posts {
    UniqueFd bell;  ///< eventfd
    std::mutex mutex;
    std::vector<Handler> handlers;
  };

  EventLoop(Escape escape, UniqueFd epoll, UniqueFd timer, std::unique_ptr<Posts> posts)
      : escape_(escape),
        epoll_(std::move(epoll)),
        timer_(std::move(timer)),
        posts_(std::move(posts)) {}
  void add(int fd, std::uint32_t events, Handler handler);
  void dispatch(std::uint64_t event);
  void run_due_timers();
  void run_what_is_due();
  void run_posts();
  void set_timer() const;
  void call(const Handler& handler) const;

  Escape escape_;
  UniqueFd epoll_;
  UniqueFd timer_;  ///< set to the earliest of `timers_`
  std::unique_ptr<Posts> posts_;
  std::map<int, Watch> watched_;  ///< by descriptor
  std::uint32_t next_watch_ = 0;
  std::multimap<Time, Handler> timers_;
  std::deque<Handler> due_;  ///< timers without a pause
  Handler after_each_;
  bool is_stopped_ = false;
};

}  // namespace kvhive
