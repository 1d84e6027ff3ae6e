#pragma once
// Calls into a channel's memory file after its client has got the file. Such a call takes the
// file's lock in the kernel (the inode lock). The client can hold that lock for ever: it calls
// write() on the file with a buffer whose page fault is never answered (FUSE, userfaultfd). A
// thread that waits for the lock cannot even be killed. So the keeper makes no such call. A helper
// process for each user makes it, and the keeper never waits for a helper. A helper without work
// ends after a while. There are at most kMostHelpers; then users wait, but not the daemon's own and
// root.

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/loop/event_loop.hpp"
#include "base/unique_fd.hpp"

namespace kvhive {

class FileHelpers {
 public:
  /// \param on_freed  called on the loop for each call of free()
  FileHelpers(EventLoop& loop, std::function<void(std::uint64_t channel)> on_freed)
      : loop_(loop), on_freed_(std::move(on_freed)) {}
  FileHelpers(const FileHelpers&) = delete;
  FileHelpers& operator=(const FileHelpers&) = delete;
  /// Kills the helpers and waits for none.
  ~FileHelpers();

  /// Frees a closed channel's memory, even if a process still has a descriptor of it.
  void free(uid_t user, std::uint64_t channel, UniqueFd memory, std::size_t bytes);
  /// Tells the client library which engine serves the channel, or kNoEngine. The last call wins,
  /// and replaces what the helper was not asked to say yet.
  void say_serving(uid_t user, std::uint64_t channel, UniqueFd memory, std::uint32_t engine);

  static constexpr std::size_t kMostHelpers = 32;

  /// What a helper is asked to do, and its answer when it is done.
  struct Job {
    enum class Kind : std::uint64_t { free, say_serving } kind{};
    std::uint64_t channel = 0;
    std::uint64_t number = 0;  ///< bytes, or the engine
  };

 private:
  struct Helper {
    pid_t pid = 0;  ///< 0 = not started
    UniqueFd socket, pidfd;
    /// Not done yet, the oldest first; the first `sent` of them are sent.
    std::deque<std::pair<Job, UniqueFd>> jobs;
    std::size_t sent = 0;
    std::uint64_t done = 0;
    bool tries_again = false;  ///< a timer for send_jobs() is set
  };
  void add(uid_t user, const Job& job, UniqueFd memory);
  bool may_start(uid_t user) const;
  bool start(uid_t user, Helper& helper);
  void send_jobs(uid_t user);
  void try_again(uid_t user, Helper& helper);
  void on_answer(uid_t user);
  void end_if_idle(uid_t user, std::uint64_t done);
  void on_end(uid_t user);

  EventLoop& loop_;
  std::function<void(std::uint64_t)> on_freed_;
  std::map<uid_t, Helper> helpers_;
};

}  // namespace kvhive
