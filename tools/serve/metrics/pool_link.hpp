#pragma once
// A daemon's pool, mapped read-only for as long as the daemon lives, and the next daemon's after
// it. A thread of its own connects and asks: who reads never waits for another process.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/expected.hpp"
#include "base/unique_fd.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

/// What only the keeper knows.
struct KeeperAnswer {
  std::vector<std::string> domains;                 ///< names, by number
  std::map<std::uint32_t, std::uint64_t> restarts;  ///< of engines, by their numbers
  std::vector<std::string> models;                  ///< the daemon's, by ModelId
  std::map<std::uint32_t, std::string> model_of;    ///< by engine, the model's name
};

class PoolLink {
 public:
  /// \param socket  the daemon's
  /// \param on_attached  called in the thread when a daemon's pool was attached: the first one's,
  ///                     and each that follows
  explicit PoolLink(std::string socket, std::function<void()> on_attached = {});
  PoolLink(const PoolLink&) = delete;
  PoolLink& operator=(const PoolLink&) = delete;
  /// Waits for the thread: two seconds, if the keeper is stopped.
  ~PoolLink();

  /// As it is known now.
  struct Known {
    std::shared_ptr<const PoolMemory> memory;  ///< null = there is no daemon, or none to be read
    bool keeper_answers = false;
    KeeperAnswer keeper;  ///< the last there was
    /// The same as the keeper gave it, whole (ipc/questions.hpp), and when; null = it gave none.
    std::shared_ptr<const nlohmann::json> status;
    std::chrono::steady_clock::time_point told{};
    /// Why there is no memory: there is no daemon, or this process may not read its pool.
    bool is_refused = false;
    std::string trouble;
  };
  Known known() const;
  /// Why requests would wait now, as "no engine takes requests: engine 0 is stopped"; empty = an
  /// engine takes them, or may soon, or it is not known. Waits for nobody: what the keeper said may
  /// be seconds old, but whether a process is stopped is not.
  std::string no_engine_takes_requests() const;
  /// Somebody looks: for the next seconds the keeper is asked once a second.
  void hurry();

 private:
  struct Link {
    UniqueFd socket;
    std::shared_ptr<const PoolMemory> memory;
  };
  void run();
  bool is_asked_to_end(int timeout_ms, int socket) const;
  bool is_in_a_hurry() const;
  [[nodiscard]] Expected<Link> attach() const;
  enum class Answer : std::uint8_t { come, silence, end };
  Answer ask(const Link& link, std::uint64_t ticket);
  void forget(const Error& why);

  const std::string socket_;
  const std::function<void()> on_attached_;
  UniqueFd end_;                             ///< readable = the thread shall end
  UniqueFd wake_;                            ///< readable = the keeper shall be asked now
  std::atomic<std::int64_t> hurried_ns_{0};  ///< when somebody looked last, on the steady clock
  mutable std::mutex mutex_;
  Known known_;       ///< guarded by mutex_
  std::string said_;  ///< the last reason that was logged
  std::thread thread_;
};

}  // namespace kvhive
