#pragma once
// A thread for work that would keep an event loop from its other clients. Work is done in pieces.
// The keys (users, channels) take turns, and so do the jobs of one key: a key that has much to do
// delays another by one piece. The thread has a lower priority than others (nice + 10).

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace kvhive {

class BackgroundWorker {
 public:
  /// Does one piece of its work. True = all is done; false = call again.
  using Job = std::function<bool()>;

  BackgroundWorker();
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;
  /// Waits for the piece that is being done, and destroys all jobs.
  ~BackgroundWorker();

  void add(std::uint64_t key, Job job);

 private:
  struct Turn {
    std::uint64_t key;
    Job job;
  };
  void work();
  std::optional<Turn> next_turn();
  void end_turn(Turn turn, bool is_done);

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable has_work_;
  std::map<std::uint64_t, std::deque<Job>> waiting_;  ///< by key; one may be in work
  std::deque<std::uint64_t> turns_;                   ///< the keys that have something to do
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace kvhive
