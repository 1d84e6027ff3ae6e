#pragma once
// The CLI's read-only view of a running daemon.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ipc/protocol.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

enum class Privilege : std::uint8_t { metadata_only, tokens_too };

class Inspector {
 public:
  /// Attaches read-only. Needs the keeper only: steward and engines may be stopped or dead.
  [[nodiscard]] static Expected<Inspector> attach(const std::string& socket, Privilege privilege);

  const PoolMemory& memory() const { return memory_; }
  const std::string& model() const { return model_; }

  /// What the keeper knows: who runs, who is connected.
  [[nodiscard]] Expected<nlohmann::json> status() const;

  /// The first domains' names, by number, and which of them our own clients would be in.
  struct Domains {
    std::vector<std::string> names;
    std::optional<DomainId> ours;  ///< none = they would be refused

    /// A number where we were told no name.
    std::string name(std::uint16_t domain) const;
    /// Errors: there is none of that name (yet).
    [[nodiscard]] Expected<DomainId> find(const std::string& name) const;
  };
  [[nodiscard]] Expected<Domains> domains() const;

  /// Has the daemon's steward repair the pool: we only look. What was mended.
  [[nodiscard]] Expected<nlohmann::json> repair() const;

 private:
  Inspector(UniqueFd socket, PoolMemory memory, std::string model)
      : socket_(std::move(socket)), memory_(std::move(memory)), model_(std::move(model)) {}

  template <class Question, class Answer>
  [[nodiscard]] Expected<nlohmann::json> ask() const;

  UniqueFd socket_;
  PoolMemory memory_;
  std::string model_;
};

}  // namespace kvhive
