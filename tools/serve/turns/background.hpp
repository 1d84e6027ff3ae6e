#pragma once
// What takes longer than an event loop may: done in two other threads, one for short work and one
// for long, each in fair turns (turn_queue.hpp).

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <functional>

#include "tools/serve/turns/turn_queue.hpp"

namespace kvhive {

class Background {
 public:
  explicit Background(boost::asio::io_context& loop) : loop_(loop) {}
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  /// Waits for the work that is being done. The rest is dropped.
  ~Background();

  /// Work on more bytes than these is long: it takes some ten milliseconds and more.
  static constexpr std::size_t kShortBytes = 64 << 10;

  struct Job {
    std::size_t bytes = 0;            ///< to work on
    std::function<bool()> is_wanted;  ///< asked in the loop, before the work and after it
    std::function<void()> work;       ///< in another thread; what it throws, the loop throws
    std::function<void()> on_done;    ///< in the loop, if it is still wanted
  };
  void run(const Turn& turn, Job job);

 private:
  struct Lane {
    TurnQueue<Job> waiting;
    bool is_busy = false;
    boost::asio::thread_pool thread{1};
  };
  void next(Lane& lane);

  boost::asio::io_context& loop_;
  std::array<Lane, 2> lanes_;  ///< short and long
};

}  // namespace kvhive
