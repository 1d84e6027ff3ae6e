#pragma once
// A real kvhived whose keeper can be traced, and what another process can see of it. While the
// keeper is traced, only /proc is read, because a question to the keeper adds system calls.
// Functions that ask the keeper say so.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {

/// What a test found wrong, in words.
using Complaints = std::vector<std::string>;

/// Descriptors, memory objects and processes of a daemon.
struct Belongings {
  std::size_t descriptors = 0, objects = 0, processes = 0;
  friend bool operator==(const Belongings&, const Belongings&) = default;
};

class Scene {
 public:
  /// \param flags  of kvhived, besides those that all scenes have: two engines, a small pool
  explicit Scene(std::vector<std::string> flags = {});
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  /// Kills the daemon if it runs.
  ~Scene();

  /// Starts kvhived. A keeper that ended before has had the same socket.
  void launch(const BeforeExec& before_exec = {});
  /// Launches, and waits until the daemon is ready.
  void start();
  /// Readable once the daemon is ready or has ended.
  const UniqueFd& news() const { return news_; }
  /// Whether it is ready. If `news` is not readable yet, waits.
  bool is_ready();
  /// "ready ...", or why it did not start.
  const std::string& last_words() const { return last_words_; }
  /// The daemon has ended and been collected.
  void forget_daemon() { front_ = 0; }

  /// What was started; 0 = it has ended.
  pid_t front() const { return front_; }
  /// 0 = there is none now.
  pid_t keeper() const { return front_ == 0 ? 0 : keeper_of(front_); }
  /// 0 = there is none now.
  pid_t steward() const;
  pid_t engine(std::uint32_t index) const;
  pid_t any_engine() const;  ///< or the one that looks at the model

  /// An engine that the keeper did not start. It is killed with the scene, or by end_guest().
  void start_guest();
  /// The same, and waits until it serves; it is engine 2.
  void add_guest();
  void end_guest();
  pid_t guest() const { return guest_; }

  const std::string& socket() const { return socket_; }
  const std::string& log() const { return log_; }
  /// Asks the keeper, as the next two do.
  Result<Client> connect(std::uint32_t engine = kAnyEngine) const;
  bool fsck_is_clean() const;
  /// An ended engine's slot is swept by the steward.
  bool has_swept_all_slots() const;
  Belongings belongings() const;

  /// The daemon's processes and memory objects at one moment. After it has ended, none of them may
  /// be left.
  struct Remains {
    std::vector<pid_t> processes;
    std::set<ino_t> objects;
    bool has_steward = false;  ///< the steward, or a child that is about to be it, is alive
  };
  Remains remains() const;
  /// nothing: the socket is gone, too, because the steward has removed it. perhaps_the_socket:
  /// there was no steward (docs/RELIABILITY.md).
  enum class Left : std::uint8_t { nothing, perhaps_the_socket };
  Complaints nothing_is_left_of(const Remains& remains, Left left = Left::nothing) const;
  /// Sends SIGTERM and collects the keeper, which must end well.
  Complaints stop(Left left = Left::nothing);
  /// Kills the processes that are left and removes the socket, so that the next daemon can start.
  void clear_away(const Remains& remains) const;

 private:
  TempDirectory directory_;
  std::vector<std::string> flags_;
  std::string socket_, log_;
  pid_t front_ = 0;
  pid_t guest_ = 0;
  UniqueFd news_;
  std::string last_words_;  ///< "ready ...", or why it did not start
};

/// Requests with the same tokens each time.
GenerateRequest short_request();
GenerateRequest long_request();

}  // namespace kvhive::testing
