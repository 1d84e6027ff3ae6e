#include "tools/keeper/domains.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>

#include "config/domains/domain_name.hpp"
#include "config/domains/domain_rules.hpp"
#include "config/domains/rule_text.hpp"
#include "ipc/protocol.hpp"

namespace kvhive {

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

Expected<Domains> Domains::with_rules(const Options& options) {
  Domains domains;
  std::ifstream("/proc/sys/kernel/overflowuid") >> domains.nobody_;
  if (auto good = domains.use(options); !good) return forward_error(good);
  return domains;
}

Expected<Domains> Domains::resolve(const Options& options, const PeerIdentity& daemon) {
  auto domains = with_rules(options);
  if (!domains) return domains;
  (void)domains->of(daemon);  // an error means that the rules refuse the daemon's own user: allowed
  if (auto numbered = domains->number_those_with_blocks(); !numbered)
    return forward_error(numbered);
  return domains;
}

Expected<void> Domains::use(const Options& options) {
  if (options.domains != rules_) {
    const auto rules = with_numbers(options.domains);
    if (!rules) return forward_error(rules);
    users_.clear();
    groups_.clear();
    for (const DomainRule& rule : *rules)
      for (const std::string& member : rule.members) {
        std::uint32_t number = 0;
        const bool is_group = member[0] == '@';
        parse_number(number, member.substr(is_group ? 1 : 0));
        (is_group ? groups_ : users_).emplace(number, rule.name);
      }
    rules_ = options.domains;
  }
  others_ = options.sharing;
  shares_ = options.shares;
  return {};
}

Expected<DomainId> Domains::of(const PeerIdentity& client) {
  auto name = name_for(client);
  if (!name) return forward_error(name);
  return number_of(*name);
}

Expected<DomainId> Domains::asked_for(std::string_view name, const PeerIdentity& client,
                                      Asker asker) {
  // Not said: what is said goes into the log, too.
  if (!is_domain_name(name))
    return failure(Errc::bad_argument,
                   std::string("domain: what is asked for is no name of a domain; those have ") +
                       kDomainNameRule);
  if (may_ask_for(name, client, asker)) return number_of(std::string(name));
  // One text for domains that there are and for others: strangers learn no names.
  return failure(Errc::bad_argument,
                 "user " + std::to_string(client.uid) + " may not ask for domain '" +
                     std::string(name) +
                     (asker == Asker::trusted
                          ? "': no rule names it; the operator must add it under domains"
                          : "': there is none of that name whose rule names one of its groups; the "
                            "operator must add a group of the user's to it under domains"));
}

bool Domains::may_ask_for(std::string_view name, const PeerIdentity& client, Asker asker) const {
  if (const auto own = name_for(client); own && *own == name) return true;
  if (asker == Asker::trusted)
    return std::any_of(rules_.begin(), rules_.end(),
                       [name](const DomainRule& rule) { return rule.name == name; });
  if (users_.contains(client.uid)) return false;
  return std::any_of(client.groups.begin(), client.groups.end(), [&](gid_t group) {
    const auto named = groups_.find(group);
    return named != groups_.end() && named->second == name;
  });
}

Expected<DomainId> Domains::number_of(const std::string& name) {
  if (const auto known = ids_.find(name); known != ids_.end()) return known->second;
  constexpr std::size_t kMost = std::numeric_limits<decltype(DomainId::value)>::max() + 1;
  if (names_.size() == kMost)
    return failure(Errc::pool_exhausted,
                   "all " + std::to_string(kMost) +
                       " domains are given out; the operator must put users together (domains), or "
                       "restart the daemon");
  return add_name(name);
}

DomainId Domains::add_name(const std::string& name) {
  const DomainId id{static_cast<std::uint16_t>(names_.size())};
  ids_.emplace(name, id);
  names_.push_back(name);
  return id;
}

void Domains::restore(const std::vector<std::string>& names) {
  names_.clear();
  ids_.clear();
  for (const std::string& name : names) add_name(name);
}

/// The pool counts the blocks of the domains with the lowest numbers.
Expected<void> Domains::number_those_with_blocks() {
  for (const ShareRule& rule : shares_) {
    if (!rule.blocks.is_given() || ids_.contains(rule.domain)) continue;
    if (names_.size() == kLimitedDomains)
      return failure(Errc::bad_argument, "shares: '" + rule.domain +
                                             "' is one domain too many with min-blocks or "
                                             "max-blocks; give them to at most " +
                                             std::to_string(kLimitedDomains - 1) +
                                             " domains beside that of the daemon's own user");
    add_name(rule.domain);
  }
  return {};
}

Expected<std::array<BlockLimits, kLimitedDomains>> Domains::block_limits(
    std::uint32_t blocks) const {
  std::array<BlockLimits, kLimitedDomains> limits{};
  std::uint64_t sum = 0;
  const auto error = [&](const ShareRule& rule, const std::string& value,
                         const std::string& remedy) {
    return failure(Errc::bad_argument,
                   "shares: '" + value + "' of '" + rule.domain + "' " + remedy);
  };
  const std::string of_all = "the device tier has " + std::to_string(blocks) + " blocks";
  for (const ShareRule& rule : shares_) {
    if (!rule.blocks.is_given()) continue;
    const std::string min = "min-blocks:" + to_string(rule.blocks.min);
    const std::string max = "max-blocks:" + to_string(rule.blocks.max);
    BlockLimits& own = limits[ids_.at(rule.domain).value];
    if (rule.blocks.min.is_given()) own.min = rule.blocks.min.of(blocks);
    if (rule.blocks.max.is_given()) own.max = rule.blocks.max.of(blocks);
    if (own.max != 0 && own.max < own.min)
      return error(rule, max, "is less than its " + min + " (" + of_all + "); raise max-blocks");
    sum += own.min;
    if (sum > blocks)
      return error(rule, min,
                   "makes " + std::to_string(sum) + " blocks with the minimums before it, but " +
                       of_all +
                       "; lower min-blocks, or give the pool more memory "
                       "(--kv-cache-memory-bytes)");
  }
  return limits;
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
