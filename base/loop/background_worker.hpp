#pragma once
// Threads for work that would keep an event loop from its other clients. Work is done in pieces.
// The keys (users, channels) take turns, and so do the jobs of one key: a key that has much to do
// delays another by one piece. No two threads work for one key at the same time. The threads have a
// lower priority than others (nice + 10).

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace kvhive {

class BackgroundWorker {
 public:
  /// Does one piece of its work. True = all is done; false = call again.
  using Job = std::function<bool()>;

  explicit BackgroundWorker(std::size_t threads = 1);
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;
  /// Waits for the pieces that are being done, and destroys all jobs.
  ~BackgroundWorker();

  void add(std::uint64_t key, Job job);
  /// Waits for the pieces that are being done; from now on nothing is done.
  void stop();

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
  std::map<std::uint64_t, std::deque<Job>> waiting_;  ///< by key, also those that are worked for
  std::deque<std::uint64_t> turns_;  ///< the keys that have something to do, and no thread yet
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvhive
