#pragma once
// Holds streams up, so that a test can look at what goes on without them.

#include <atomic>
#include <chrono>
#include <future>

#include "tests/simt/stream.hpp"

namespace kvhive::testing {

/// Streams that come to it stay there until it is opened, once, by any thread. A test that does not
/// open it fails instead of hanging.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!is_open_.exchange(true)) opened_.set_value();
  }
  bool is_open() const { return is_open_; }
  void hold(CUstream_st* stream) {
    stream->enqueue([is_opened = is_opened_] { is_opened.wait_for(std::chrono::seconds(20)); });
  }

 private:
  std::promise<void> opened_;
  std::shared_future<void> is_opened_ = opened_.get_future().share();
  std::atomic<bool> is_open_{false};
};

}  // namespace kvhive::testing
