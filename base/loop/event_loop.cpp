#include "base/loop/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/logging/log_limit.hpp"

namespace kvhive {
namespace {

// No descriptor has the number -1 or -2.
constexpr std::uint64_t kTimerEvent = ~std::uint64_t{0};
constexpr std::uint64_t kPostEvent = kTimerEvent - 1;

bool add_to(int epoll, int fd, std::uint32_t events, std::uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Expected<EventLoop> EventLoop::create(Escape escape) {
  UniqueFd epoll{epoll_create1(EPOLL_CLOEXEC)};
  if (!epoll) return os_failure("epoll_create1");
  UniqueFd timer{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
  if (!timer) return os_failure("timerfd_create");
  if (!add_to(epoll.get(), timer.get(), EPOLLIN, kTimerEvent)) return os_failure("epoll_ctl");
  auto posts = std::make_unique<Posts>();
  posts->bell = UniqueFd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!posts->bell) return os_failure("eventfd");
  if (!add_to(epoll.get(), posts->bell.get(), EPOLLIN, kPostEvent)) return os_failure("epoll_ctl");
  return EventLoop(escape, std::move(epoll), std::move(timer), std::move(posts));
}

void EventLoop::watch(int fd, Handler on_ready) { add(fd, EPOLLIN, std::move(on_ready)); }

void EventLoop::watch_edges(int fd, Handler on_edge) {
  add(fd, EPOLLIN | EPOLLET, std::move(on_edge));
}

void EventLoop::add(int fd, std::uint32_t events, Handler handler) {
  // The number tells events of this watch from those of an earlier one on a descriptor of the same
  // number.
  const std::uint32_t number = next_watch_++;
  const auto [place, inserted] = watched_.emplace(fd, Watch{number, std::move(handler)});
  KV_CHECK(inserted, fd);
  const std::uint64_t data = std::uint64_t{number} << 32 | static_cast<std::uint32_t>(fd);
  KV_CHECK(add_to(epoll_.get(), fd, events, data), fd, errno);
}

void EventLoop::unwatch(int fd) {
  if (watched_.erase(fd) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::after(std::chrono::nanoseconds pause, Handler on_time) {
  if (pause <= pause.zero()) return due_.push_back(std::move(on_time));
  const auto timer = timers_.emplace(std::chrono::steady_clock::now() + pause, std::move(on_time));
  if (timer == timers_.begin()) set_timer();
}

void EventLoop::post(Handler handler) {
  {
    const std::lock_guard lock(posts_->mutex);
    posts_->handlers.push_back(std::move(handler));
  }
  const std::uint64_t once = 1;
  KV_CHECK(write(posts_->bell.get(), &once, sizeof once) == sizeof once, errno);
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  while (!is_stopped_) {
    constexpr int kForEver = -1;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 due_.empty() ? kForEver : 0);
    KV_CHECK(count >= 0 || errno == EINTR, errno);
    for (int i = 0; i < count && !is_stopped_; ++i) {
      dispatch(events[static_cast<std::size_t>(i)].data.u64);
      if (after_each_) call(after_each_);
    }
    run_what_is_due();
  }
  is_stopped_ = false;
}

void EventLoop::dispatch(std::uint64_t event) {
  if (event == kTimerEvent) return run_due_timers();
  if (event == kPostEvent) return run_posts();
  const auto watch = watched_.find(static_cast<int>(event & 0xffffffff));
  if (watch == watched_.end() || watch->second.number != event >> 32) return;
  const Handler on_ready = watch->second.on_ready;  // a copy: the watch may be removed meanwhile
  call(on_ready);
}

void EventLoop::run_due_timers() {
  std::uint64_t expirations;
  [[maybe_unused]] const ssize_t got = read(timer_.get(), &expirations, sizeof expirations);
  // Reads the clock once: timers that are set again while they run must not keep the loop from its
  // descriptors.
  const Time now = std::chrono::steady_clock::now();
  while (!is_stopped_ && !timers_.empty() && timers_.begin()->first <= now)
    call(timers_.extract(timers_.begin()).mapped());
  set_timer();
}

/// Not what they add: that waits for the next events.
void EventLoop::run_what_is_due() {
  for (std::size_t left = due_.size(); left != 0 && !is_stopped_; --left) {
    const Handler handler = std::move(due_.front());
    due_.pop_front();
    call(handler);
    if (after_each_) call(after_each_);
  }
}

void EventLoop::run_posts() {
  std::uint64_t rings;
  [[maybe_unused]] const ssize_t got = read(posts_->bell.get(), &rings, sizeof rings);
  std::vector<Handler> handlers;
  {
    const std::lock_guard lock(posts_->mutex);
    handlers.swap(posts_->handlers);
  }
  for (const Handler& handler : handlers) call(handler);  // all, also if one of them stops the loop
}

/// Sets the timer descriptor to the earliest timer, or disarms it if there is none.
void EventLoop::set_timer() const {
  itimerspec when{};
  if (!timers_.empty()) {
    // steady_clock is CLOCK_MONOTONIC. Zero would mean "never".
    const auto at = timers_.begin()->first.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
    when.it_value.tv_sec = seconds.count();
    when.it_value.tv_nsec = std::max<long>(1, std::chrono::nanoseconds(at - seconds).count());
  }
  KV_CHECK(timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0, errno);
}

void EventLoop::call(const Handler& handler) const {
  if (escape_ == Escape::leaves_run) return handler();
  try {
    handler();
  } catch (const std::exception& exception) {
    static LogLimit limit;
    if (const auto note = limit.admit()) spdlog::error("{}{}", exception.what(), *note);
  }
}

}  // namespace kvhive
