#pragma once
// Blocks streams, so that a test can see which work does not wait for them.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "kernels/simt/stream.hpp"

namespace kvhive::testing {

/// A stream that reaches the gate waits there until any thread opens it, once and for all. After 20
/// seconds the stream goes on, so that a test that never opens its gate fails instead of hanging.
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
  /// No stream has given up waiting.
  bool was_opened_in_time() const { return is_open_ && *is_in_time_; }

 private:
  std::promise<void> opened_;
  std::shared_future<void> is_opened_ = opened_.get_future().share();
  std::shared_ptr<std::atomic<bool>> is_in_time_ = std::make_shared<std::atomic<bool>>(true);
  std::atomic<bool> is_open_{false};
};

}  // namespace kvhive::testing
