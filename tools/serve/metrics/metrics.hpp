#pragma once
// Answers GET /metrics. The page is made in a thread of its own, so that no connection waits while
// the blocks of a large pool are counted.

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tools/serve/http/exchange.hpp"
#include "tools/serve/metrics/page.hpp"

namespace kvhive {

class Metrics {
 public:
  /// \param link     to the daemon's pool
  /// \param model    the name that requests give; empty = they choose one of several
  /// \param numbers  what the service counts; called in the loop
  Metrics(boost::asio::io_context& loop, PoolLink& link, std::string model, OldNames old_names,
          std::function<ServiceNumbers()> numbers);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  void answer(const std::shared_ptr<Exchange>& exchange);
  /// Another model is served from now on.
  void set_model(std::string name) { model_ = std::move(name); }

 private:
  /// What is read of all blocks, at most once a second.
  struct Scan {
    std::weak_ptr<const PoolMemory> memory;  ///< of which it is; a dead daemon's is not kept
    std::chrono::steady_clock::time_point made{};
    BlockCounts blocks;
    IndexMarks index;
  };
  std::string make(MetricsView view, std::string model, ServiceNumbers numbers);
  const Scan& scan(const std::shared_ptr<const PoolMemory>& memory);

  boost::asio::io_context& loop_;
  std::string model_;  ///< of the loop
  const OldNames old_names_;
  const std::function<ServiceNumbers()> numbers_;
  PoolLink& link_;
  Scan scan_;  ///< only the thread below uses it
  boost::asio::thread_pool making_{1};
};

}  // namespace kvhive
