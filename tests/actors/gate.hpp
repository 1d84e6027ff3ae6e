#pragma once
// Holds streams up, so that a test can look at what goes on without them.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "kernels/simt/stream.hpp"

namespace kvhive::testing {

/// Streams that come to it stay there until it is opened, once, by any thread; or for 20 seconds,
/// so that a test which nobody opens it for fails instead of hanging.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!is_open_.exchange(true)) opened_.set_value();
  }
  void hold(CUstream_st* stream) {
    stream->enqueue([is_opened = is_opened_, is_in_time = is_in_time_] {
      if (is_opened.wait_for(std::chrono::seconds(20)) != std::future_status::ready)
        *is_in_time = false;
    });
  }
  /// Nobody has given up waiting.
  bool was_opened_in_time() const { return is_open_ && *is_in_time_; }

 private:
  std::promise<void> opened_;
  std::shared_future<void> is_opened_ = opened_.get_future().share();
  std::shared_ptr<std::atomic<bool>> is_in_time_ = std::make_shared<std::atomic<bool>>(true);
  std::atomic<bool> is_open_{false};
};

}  // namespace kvhive::testing
