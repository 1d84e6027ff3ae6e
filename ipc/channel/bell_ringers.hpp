#pragma once
// Threads that ring the clients that are strangers to the daemon. A ring takes as long as its
// client likes (ipc/channel/doorbell.hpp): the kernel wakes all that hangs on the client's end. The
// same is true of the close of the last descriptor of a bell. So:
//  - No thread that serves others rings a stranger. These threads have a lower priority.
//  - At most one ring of a user is under way at a time, and users take turns.
//  - Users whose last ring was slow have a thread for themselves; others never wait for it. After a
//    slow ring it rests for nine times as long: while the kernel walks a long list, nothing else
//    runs on that processor.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/loop/background_worker.hpp"
#include "ipc/channel/doorbell.hpp"

namespace kvhive {

class BellRingers {
 public:
  /// Rings a client through the engine's end of its bell.
  using Ring = std::function<void(int engine_end)>;

  using Rest = std::function<void(std::chrono::nanoseconds)>;

  explicit BellRingers(Ring ring = ring_client, Rest rest = sleep)
      : ring_(std::move(ring)), rest_(std::move(rest)) {}
  BellRingers(const BellRingers&) = delete;
  BellRingers& operator=(const BellRingers&) = delete;
  /// Waits for the rings that are under way.
  ~BellRingers();

  /// Rings a client of this user. A call of ring() while a ring waits for its turn is served by
  /// that one. The ringers outlive the returned object. Error: the user has left many channels
  /// whose bells are not closed yet.
  [[nodiscard]] Expected<std::unique_ptr<ClientRing>> ring_for(std::uint32_t user,
                                                               UniqueFd engine_end);
  /// Closes a descriptor that a client of this user has, too: ClientRing::close() for a client that
  /// is not served.
  void close(std::uint32_t user, UniqueFd shared);

 private:
  class QueuedRing;
  struct User;
  struct Bell;
  using Job = std::function<void()>;
  static void sleep(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }
  std::shared_ptr<User> find(std::uint32_t user);
  void queue(const std::shared_ptr<User>& user, Job job);
  void close(const std::shared_ptr<User>& user, UniqueFd shared);
  void close(const std::shared_ptr<User>& user, const std::shared_ptr<Bell>& bell);

  static constexpr std::size_t kQuickThreads = 2;

  Ring ring_;
  Rest rest_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<User>> users_;  ///< guarded by mutex_
  BackgroundWorker quick_{kQuickThreads};
  BackgroundWorker slow_;
};

}  // namespace kvhive
