#pragma once
// Decides which domain a client is in, by the operator's rules and by what the kernel says of the
// process at the other end of its socket. What a client says of itself does not count.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/options.hpp"

namespace kvhive {

/// The user and groups of a process.
struct PeerIdentity {
  uid_t uid = 0;
  std::vector<gid_t> groups;  ///< the effective one and the supplementary ones

  /// The process at the other end of a socket (SO_PEERCRED, SO_PEERGROUPS).
  static PeerIdentity of_socket(int socket);
  static PeerIdentity of_this_process();
};

class Domains {
 public:
  /// Looks up the names in the rules, once. The domain of the daemon's own user is number 0, unless
  /// that user is refused. Errors: a user or group that the system does not know, or two rules
  /// name.
  [[nodiscard]] static Expected<Domains> resolve(const Options& options,
                                                 const PeerIdentity& daemon);

  /// The domain of a client; the same for the same identity as long as the daemon runs. A rule that
  /// names the user wins over a rule that names one of its groups. Errors: why it is refused.
  [[nodiscard]] Expected<DomainId> of(const PeerIdentity& client);

  /// By number.
  const std::vector<std::string>& names() const { return names_; }

 private:
  Domains() = default;
  [[nodiscard]] Expected<void> add_member(const std::string& member, const std::string& domain);
  [[nodiscard]] Expected<std::string> name_for(const PeerIdentity& client) const;

  Sharing others_ = Sharing::user;  ///< for clients that no rule names
  std::map<uid_t, std::string> users_;
  std::map<gid_t, std::string> groups_;
  uid_t nobody_ = 65534;  ///< the kernel shows it for every user that this namespace cannot map
  std::vector<std::string> names_;
  std::map<std::string, DomainId> ids_;
};

}  // namespace kvhive
