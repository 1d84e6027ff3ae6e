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
  fail,       ///< an error that names the process and the remedy
};

class Inspector {
 public:
  /// Attaches read-only, within 12 s at most. Steward and engines may be stopped or dead. If the
  /// keeper is stopped, and without_keeper says so, the keeper's own descriptors are opened anew
  /// (tools/cli/stopped_keeper.hpp), and a line on standard error says what is missing.
  [[nodiscard]] static Expected<Inspector> attach(const std::string& socket, Privilege privilege,
                                                  WithoutKeeper without_keeper);

  const PoolMemory& memory() const { return memory_; }
  const std::string& model() const { return model_; }

  /// False: the keeper did not answer, and status() and repair() are errors.
  bool has_keeper() const { return bool(socket_); }
  pid_t keeper() const { return keeper_; }

  /// What the keeper knows: which processes run, and which clients are connected.
  [[nodiscard]] Expected<nlohmann::json> status() const;

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

  /// Has the daemon's steward repair the pool, since this process can only read. Returns what was
  /// mended.
  [[nodiscard]] Expected<nlohmann::json> repair() const;

 private:
  Inspector(UniqueFd socket, pid_t keeper, PoolMemory memory, std::string model)
      : socket_(std::move(socket)),
        keeper_(keeper),
        memory_(std::move(memory)),
        model_(std::move(model)) {}

  [[nodiscard]] static Expected<Inspector> attach_by(UniqueFd socket, pid_t keeper,
                                                     Privilege privilege, int timeout_ms);
  [[nodiscard]] static Expected<Inspector> attach_without(pid_t keeper, Privilege privilege);
  template <class Question, class Answer>
  [[nodiscard]] Expected<Packet> ask() const;

  UniqueFd socket_;  ///< none: the keeper does not answer
  pid_t keeper_;     ///< 0 = not visible from here
  PoolMemory memory_;
  std::string model_;
};

}  // namespace kvhive
