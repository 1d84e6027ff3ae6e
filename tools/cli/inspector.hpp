#pragma once
// The CLI's read-only view of a running daemon.

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ipc/protocol.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

enum class Privilege : std::uint8_t { metadata_only, tokens_too };

/// What becomes of an inspection if the keeper (kvhived) is stopped or does not answer.
enum class WithoutKeeper : std::uint8_t {
  read_pool,  ///< the pool is read without it; what only the keeper knows is missing
  /// The same, within a second and without the line: for a view that goes on and says it itself.
  read_pool_at_once,
  fail,  ///< an error that names the process and the remedy
};

/// As the kernel knows them: what kvhived calls itself counts in its own PID namespace. 0 = not
/// visible from here.
struct DaemonPids {
  pid_t daemon = 0, keeper = 0;
};

/// Finds the daemon that listens on a socket without its answer: one that starts may not answer for
/// minutes. Error: none listens there, its socket was removed, or its keeper is stopped.
[[nodiscard]] Expected<DaemonPids> find_daemon(const std::string& socket);

class Inspector {
 public:
  /// Attaches read-only, within 12 s at most. Steward and engines may be stopped or dead. If the
  /// keeper is stopped, and without_keeper says so, the keeper's own descriptors are opened anew
  /// (tools/cli/stopped_keeper.hpp), and a line on standard error says what is missing.
  [[nodiscard]] static Expected<Inspector> attach(const std::string& socket, Privilege privilege,
                                                  WithoutKeeper without_keeper);

  const PoolMemory& memory() const { return memory_; }
  /// The models' names, with ", " between them; and one by one.
  const std::string& model() const { return model_; }
  std::vector<std::string> models() const;

  /// False: the keeper did not answer, and status() and have_steward() are errors.
  bool has_keeper() const { return bool(socket_); }
  /// The process that answers, and the one that was started: to stop the daemon is to ask that.
  pid_t keeper() const { return pids_.keeper; }
  pid_t daemon() const { return pids_.daemon; }

  /// What the keeper knows: which processes run, and which clients are connected.
  [[nodiscard]] Expected<nlohmann::json> status(int timeout_ms = kAnswerMs) const;

  /// The first domains' names, by number, and which of them this user's clients would be in.
  struct Domains {
    std::vector<std::string> names;
    std::optional<DomainId> ours;  ///< none = they would be refused

    /// The number itself where the name is not known.
    std::string name(DomainId domain) const;
    /// Errc::not_found: there is no domain of that name (yet).
    [[nodiscard]] Expected<DomainId> find(const std::string& name) const;
  };
  /// Without a keeper no name is known.
  [[nodiscard]] Expected<Domains> domains() const;

  /// Has the daemon's steward repair the pool or reset its cache, since this process can only read.
  /// Returns what was done.
  [[nodiscard]] Expected<nlohmann::json> have_steward(Care care) const;

  /// Gives the keeper an order, and waits until it is done. Returns what has become of it.
  /// \param order       without its ticket
  /// \param timeout_ms  -1 = wait for ever; the order stays when the time is over
  [[nodiscard]] Expected<nlohmann::json> order(Order order, const nlohmann::json& details = {},
                                               int timeout_ms = -1) const;

 private:
  Inspector(UniqueFd socket, DaemonPids pids, PoolMemory memory, std::string model)
      : socket_(std::move(socket)),
        pids_(pids),
        memory_(std::move(memory)),
        model_(std::move(model)) {}

  [[nodiscard]] static Expected<Inspector> attach_by(UniqueFd socket, DaemonPids pids,
                                                     Privilege privilege, int timeout_ms);
  [[nodiscard]] static Expected<Inspector> attach_without(DaemonPids pids, Privilege privilege);
  tl::unexpected<Error> no_keeper() const;

  UniqueFd socket_;  ///< none: the keeper does not answer
  DaemonPids pids_;
  PoolMemory memory_;
  std::string model_;
  mutable std::uint64_t last_ticket_ = 0;
};

}  // namespace kvhive
