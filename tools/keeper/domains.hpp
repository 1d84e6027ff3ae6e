#pragma once
// Which domain a client is in: by the operator's rules, and by what the kernel says of the process
// at the other end of its socket; nothing that a client says of itself counts.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/options.hpp"

namespace kvhive {

/// Whose process it is.
struct PeerIdentity {
  uid_t uid = 0;
  std::vector<gid_t> groups;  ///< the effective one and the supplementary ones

  /// Of whoever connected (SO_PEERCRED, SO_PEERGROUPS).
  static PeerIdentity of_socket(int socket);
  static PeerIdentity of_ourselves();
};

class Domains {
 public:
  /// Looks up the names in the rules, once. Our own clients' domain is number 0, unless they are
  /// refused. Errors: a user or group that the system does not know, or that two rules name.
  static Expected<Domains> resolve(const Options& options, const PeerIdentity& ourselves);

  /// Where a client belongs; the same for the same identity as long as we live. A rule that names
  /// the user goes before one that names a group of it. Errors: it is refused, and why.
  Expected<DomainId> of(const PeerIdentity& client);

  /// By number.
  const std::vector<std::string>& names() const { return names_; }

 private:
  Domains() = default;
  Expected<void> add_member(const std::string& member, const std::string& domain);
  Expected<std::string> name_for(const PeerIdentity& client) const;

  Sharing others_ = Sharing::user;  ///< for clients that no rule names
  std::map<uid_t, std::string> users_;
  std::map<gid_t, std::string> groups_;
  uid_t nobody_ = 65534;  ///< stands for all users this user namespace has no number for
  std::vector<std::string> names_;
  std::map<std::string, DomainId> ids_;
};

}  // namespace kvhive
