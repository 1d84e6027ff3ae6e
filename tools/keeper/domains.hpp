#pragma once
// Decides which domain a client is in, by the operator's rules and by the user and groups that the
// kernel reports for the process at the other end of the socket. A client may ask for another
// domain only where the rules put its user, or where it could read everything anyway.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.hpp"
#include "base/ids.hpp"
#include "config/options.hpp"

namespace kvhive {

/// The user and groups of a process.
struct PeerIdentity {
  uid_t uid = 0;
  std::vector<gid_t> groups;  ///< the effective group and the supplementary groups

  /// The identity of the process at the other end of a socket (SO_PEERCRED, SO_PEERGROUPS).
  static PeerIdentity of_socket(int socket);
  static PeerIdentity of_this_process();
};

/// Who asks for a domain.
enum class Asker : std::uint8_t {
  any_user,
  trusted,  ///< the daemon's own user, or root: it can read every domain's blocks anyway
};

class Domains {
 public:
  /// Looks up the users and groups that the rules name, once. The domain of the daemon's own user
  /// is number 0, unless that user is refused; those with a share of the blocks are next, as the
  /// operator lists them. Errors: the system does not know a user or group, two rules put it into
  /// different domains, or too many domains have a share of the blocks.
  [[nodiscard]] static Expected<Domains> resolve(const Options& options,
                                                 const PeerIdentity& daemon);

  /// The same without any domain, for what restore() is called of.
  [[nodiscard]] static Expected<Domains> with_rules(const Options& options);

  /// From now on others of the options' rules hold; domains keep their numbers. Shares of blocks do
  /// not change. Error: the system does not know a user or group; then nothing has changed. It is
  /// asked for those only that the options name (config/domains/domain_rules.hpp: with_numbers).
  [[nodiscard]] Expected<void> use(const Options& options);

  /// The domain of a client. The same identity always gets the same domain as long as the same
  /// rules hold. A rule that names the user wins over a rule that names one of its groups. Errors:
  /// why the client is refused.
  [[nodiscard]] Expected<DomainId> of(const PeerIdentity& client);

  /// The domain of a client that asks for one by its name, for example because it serves callers of
  /// several domains. It may ask for the one that it has anyway; for those whose rules name one of
  /// its groups, unless a rule names the user itself; and, if it is trusted, for all that rules
  /// name. Errors: why the client is refused.
  [[nodiscard]] Expected<DomainId> asked_for(std::string_view name, const PeerIdentity& client,
                                             Asker asker);

  /// The domains of a killed keeper: what is in the pool is known by their numbers.
  void restore(const std::vector<std::string>& names);

  /// The names of the domains; the index is the domain's number.
  const std::vector<std::string>& names() const { return names_; }
  /// What domains may have of a device tier with `blocks` blocks, by their numbers. It follows from
  /// the options and the daemon's user alone. Errors: there are not so many blocks.
  [[nodiscard]] Expected<std::array<BlockLimits, kLimitedDomains>> block_limits(
      std::uint32_t blocks) const;
  /// What the domain may have of each engine.
  DomainShare share(DomainId domain) const { return share_of(names_[domain.value], shares_); }

 private:
  Domains() = default;
  [[nodiscard]] Expected<void> number_those_with_blocks();
  [[nodiscard]] Expected<std::string> name_for(const PeerIdentity& client) const;
  bool may_ask_for(std::string_view name, const PeerIdentity& client, Asker asker) const;
  [[nodiscard]] Expected<DomainId> number_of(const std::string& name);
  DomainId add_name(const std::string& name);

  Sharing others_ = Sharing::user;  ///< for clients that no rule names
  std::vector<ShareRule> shares_;
  std::vector<DomainRule> rules_;  ///< as the options name them
  std::map<uid_t, std::string> users_;
  std::map<gid_t, std::string> groups_;
  /// The uid that the kernel reports for all users that this user namespace cannot map.
  uid_t nobody_ = 65534;
  std::vector<std::string> names_;
  std::map<std::string, DomainId> ids_;
};

}  // namespace kvhive
