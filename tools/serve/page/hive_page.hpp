#pragma once
// The page at `/`: its files, and the hive as JSON, which the page asks for once a second.
//
// The pool is read in a thread of its own, so that no connection waits for it. However many
// browsers look, its map is made once a second for all of them, and on a large pool so seldom that
// it takes at most a fifth of a processor. For the charts, blocks and slots are counted each
// second, whether anybody looks or not. Nobody who reads waits for a process of the daemon.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/http/exchange.hpp"
#include "tools/serve/metrics/pool_link.hpp"
#include "tools/serve/page/history.hpp"
#include "tools/serve/page/hive_json.hpp"

namespace kvhive {

class HivePage {
 public:
  /// \param link  to the daemon's pool
  HivePage(boost::asio::io_context& loop, PoolLink& link, PageFacts facts);
  HivePage(const HivePage&) = delete;
  HivePage& operator=(const HivePage&) = delete;
  ~HivePage();

  /// Whether it answers what is asked for by this path.
  bool has(std::string_view path) const;
  void answer(const std::shared_ptr<Exchange>& exchange);
  /// Others are served from now on.
  void set_models(std::vector<std::string> names);

 private:
  using Clock = std::chrono::steady_clock;
  struct Made {
    std::string body, tag;
    Clock::time_point fresh_until{};
  };

  void answer_hive(const std::shared_ptr<Exchange>& exchange);
  void answer_history(const std::shared_ptr<Exchange>& exchange);
  void remember_each_second();

  // In the thread that makes answers.
  Made make();
  HiveMoment look();
  void remember();
  void leave_out_dead(Statistics& statistics);

  boost::asio::io_context& loop_;
  PoolLink& link_;
  boost::asio::steady_timer second_;
  // Of the loop.
  std::shared_ptr<const Made> made_;
  std::vector<std::shared_ptr<Exchange>> waiting_;  ///< for what is being made
  // Of the thread that makes answers.
  PageFacts facts_;
  std::optional<Snapshot> last_;
  std::set<pid_t> seen_;  ///< of the processes that have slots, those that once were alive
  History history_;
  boost::asio::thread_pool making_{1};
};

}  // namespace kvhive
