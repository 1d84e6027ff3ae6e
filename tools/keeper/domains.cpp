#include "tools/keeper/domains.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

#include "config/domains/domain_rules.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {
namespace {

std::optional<std::uint32_t> as_number(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Puts a user or group into a domain. Error: it is already in another one; the operator may have
/// named it twice in different ways (name and number).
template <class Id>
Expected<void> add(std::map<Id, std::string>& domain_of, Id id, const std::string& member,
                   const std::string& domain) {
  const auto [known, is_new] = domain_of.emplace(id, domain);
  if (is_new || known->second == domain) return {};
  return failure(Errc::bad_argument, "domains: '" + member + "' (number " + std::to_string(id) +
                                         ") is in '" + known->second + "' and again in '" + domain +
                                         "'; keep it in one of them");
}

tl::unexpected<Error> unknown(const std::string& member, const std::string& domain) {
  return failure(Errc::bad_argument, "domains: '" + member + "' in '" + domain +
                                         "' is unknown to this system; correct it, or give its "
                                         "number");
}

}  // namespace

PeerIdentity PeerIdentity::of_socket(int socket) {
  const auto credentials = peer_credentials(socket);
  if (!credentials) return {std::numeric_limits<uid_t>::max(), {}};
  PeerIdentity identity{credentials->uid, {credentials->gid}};
  std::vector<gid_t> more(64);
  auto size = static_cast<socklen_t>(more.size() * sizeof(gid_t));
  int status = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, more.data(), &size);
  if (status != 0 && errno == ERANGE) {  // the kernel has set `size` to the bytes that it needs
    more.resize(size / sizeof(gid_t));
    status = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, more.data(), &size);
  }
  if (status != 0) return identity;
  identity.groups.insert(identity.groups.end(), more.begin(),
                         more.begin() + static_cast<std::ptrdiff_t>(size / sizeof(gid_t)));
  return identity;
}

PeerIdentity PeerIdentity::of_this_process() {
  PeerIdentity identity{geteuid(), {getegid()}};
  std::vector<gid_t> more(static_cast<std::size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(more.size()), more.data());
  identity.groups.insert(identity.groups.end(), more.begin(), more.begin() + std::max(0, count));
  return identity;
}

Expected<Domains> Domains::resolve(const Options& options, const PeerIdentity& daemon) {
  Domains domains;
  domains.others_ = options.sharing;
  domains.shares_ = options.shares;
  std::ifstream("/proc/sys/kernel/overflowuid") >> domains.nobody_;
  for (const DomainRule& rule : options.domains)
    for (const std::string& member : rule.members)
      if (auto added = domains.add_member(member, rule.name); !added) return forward_error(added);
  (void)domains.of(daemon);  // an error means that the rules refuse the daemon's own user: allowed
  return domains;
}

Expected<void> Domains::add_member(const std::string& member, const std::string& domain) {
  const bool is_group = member[0] == '@';
  const std::string name = member.substr(is_group ? 1 : 0);
  auto id = as_number(name);
  if (is_group) {
    if (const group* found = id ? nullptr : getgrnam(name.c_str())) id = found->gr_gid;
  } else {
    if (const passwd* found = id ? nullptr : getpwnam(name.c_str())) id = found->pw_uid;
  }
  if (!id) return unknown(member, domain);
  return is_group ? add(groups_, gid_t{*id}, member, domain)
                  : add(users_, uid_t{*id}, member, domain);
}

Expected<DomainId> Domains::of(const PeerIdentity& client) {
  auto name = name_for(client);
  if (!name) return forward_error(name);
  if (const auto known = ids_.find(*name); known != ids_.end()) return known->second;
  constexpr std::size_t kMost = std::numeric_limits<decltype(DomainId::value)>::max() + 1;
  if (names_.size() == kMost)
    return failure(Errc::pool_exhausted,
                   "all " + std::to_string(kMost) +
                       " domains are given out; the operator must put users together (domains), or "
                       "restart the daemon");
  const DomainId id{static_cast<std::uint16_t>(names_.size())};
  ids_.emplace(*name, id);
  names_.push_back(std::move(*name));
  return id;
}

Expected<std::string> Domains::name_for(const PeerIdentity& client) const {
  const std::string user = "user " + std::to_string(client.uid);
  if (const auto named = users_.find(client.uid); named != users_.end()) return named->second;
  std::optional<std::string> by_group;
  for (const gid_t group : client.groups) {
    const auto named = groups_.find(group);
    if (named == groups_.end() || named->second == by_group) continue;
    // An error: if the keeper chose one of the two, a client could get the other by leaving a
    // group.
    if (by_group)
      return failure(Errc::bad_argument,
                     user + " is in groups of domains '" + *by_group + "' and '" + named->second +
                         "'; the operator must name the user itself in one of them (domains)");
    by_group = named->second;
  }
  if (by_group) return *by_group;
  switch (others_) {
    case Sharing::all: return std::string(kDomainOfAll);
    case Sharing::listed:
      return failure(Errc::bad_argument,
                     user +
                         " is in none of the domains that the daemon serves (sharing = listed); "
                         "the operator must name it under domains");
    case Sharing::user: break;
  }
  if (client.uid == nobody_)
    return failure(Errc::bad_argument,
                   user +
                       " stands for everybody whom the daemon's user namespace has no number "
                       "for; the operator must name it under domains if it is one user here");
  return std::string(kDomainOfUser) + std::to_string(client.uid);
}

}  // namespace kvhive
