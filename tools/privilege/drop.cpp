#include "tools/privilege/drop.hpp"

#include <cap-ng.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/unique_fd.hpp"

namespace kvhive {
namespace {

template <class Id>
std::optional<Id> number_in(const std::string& text) {
  Id id{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return id;
}

std::vector<gid_t> groups_of(const passwd& user) {
  int count = 16;
  std::vector<gid_t> groups(static_cast<std::size_t>(count));
  while (getgrouplist(user.pw_name, user.pw_gid, groups.data(), &count) < 0)
    groups.resize(static_cast<std::size_t>(count));
  groups.resize(static_cast<std::size_t>(count));
  return groups;
}

/// The group that the socket will belong to, if the operator has named one that exists.
std::optional<gid_t> group_of_socket(const AllowedUsers& access) {
  if (access.kind != AllowedUsers::Kind::group) return std::nullopt;
  if (const auto number = number_in<gid_t>(access.group)) return number;
  const group* const found = getgrnam(access.group.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->gr_gid);
}

std::vector<gid_t> own_groups() {
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  return groups;
}

/// Without the capability to do so, only a member of a group may give a file to it.
Expected<void> join_group(std::vector<gid_t> groups, const std::optional<gid_t>& joined) {
  if (joined && std::find(groups.begin(), groups.end(), *joined) == groups.end())
    groups.push_back(*joined);
  if (setgroups(groups.size(), groups.data()) != 0) return os_failure("user: setgroups");
  return {};
}

/// Only with CAP_SYS_RESOURCE; otherwise the limit stays, and is checked when the pool is sized.
void raise_limit_of_locked_memory() {
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  (void)setrlimit(RLIMIT_MEMLOCK, &none);
}

Expected<void> become(const RunAs& user) {
  if (setresgid(user.gid, user.gid, user.gid) != 0) return os_failure("user: setresgid");
  if (setresuid(user.uid, user.uid, user.uid) != 0) return os_failure("user: setresuid");
  // The change of user cleared it. Without it the user could not look at the pool through /proc
  // while the keeper is stopped, as it can if it starts the daemon itself.
  prctl(PR_SET_DUMPABLE, 1);
  return {};
}

/// Keeps programs that this process starts from getting capabilities, those of root included. Only
/// root can do it; for others no_new_privs does.
Expected<void> drop_bounding_set() {
  if (capng_have_capability(CAPNG_EFFECTIVE, CAP_SETPCAP) == 0) return {};
  capng_clear(CAPNG_SELECT_BOUNDS);
  if (capng_apply(CAPNG_SELECT_BOUNDS) == 0) return {};
  return os_failure("give up the bounding set of capabilities");
}

/// Gives up all capabilities of this thread.
Expected<void> drop_capabilities() {
  capng_clear(CAPNG_SELECT_ALL);
  if (capng_apply(CAPNG_SELECT_CAPS) == 0) return {};
  return os_failure("give up capabilities");
}

}  // namespace

Expected<RunAs> find_user(const std::string& name_or_number) {
  const auto number = number_in<uid_t>(name_or_number);
  const passwd* const found = number ? getpwuid(*number) : getpwnam(name_or_number.c_str());
  if (number && found == nullptr) return RunAs{*number, *number, {*number}};  // as in containers
  if (found == nullptr)
    return failure(Errc::bad_argument, "user: '" + name_or_number +
                                           "' is unknown to this system; correct it, or make the "
                                           "user (useradd --system)");
  return RunAs{found->pw_uid, found->pw_gid, groups_of(*found)};
}

Expected<void> make_directory_for(const RunAs& user, const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0) {
    if (errno == EEXIST) return {};
    return os_failure("user: make directory " + path);
  }
  // The user may own the directory above, and put a link to root's directory in the place.
  const UniqueFd made{open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  struct stat status {};
  const bool is_roots = made && fstat(made.get(), &status) == 0 && status.st_uid == geteuid();
  if (is_roots && fchown(made.get(), user.uid, user.gid) == 0) return {};
  auto failed = os_failure("user: give directory " + path + " to user " + std::to_string(user.uid));
  rmdir(path.c_str());
  return failed;
}

Expected<std::optional<RunAs>> wanted_user(const Options& options) {
  if (options.user.empty()) return std::nullopt;
  auto user = find_user(options.user);
  if (!user) return forward_error(user);
  if (user->uid == geteuid()) return std::nullopt;
  if (geteuid() == 0) return std::optional(std::move(*user));
  return failure(Errc::bad_argument, "user: '" + options.user +
                                         "' is another user, and only root may start a daemon as "
                                         "another; start it as that user, or leave --user out");
}

Expected<void> drop_privileges(const Options& options, const std::optional<RunAs>& user) {
  if (options.lock_metadata) raise_limit_of_locked_memory();
  const auto group = group_of_socket(options.socket_access);
  const bool may_set_groups = capng_have_capability(CAPNG_EFFECTIVE, CAP_SETGID) != 0;
  if (user && !may_set_groups)
    return failure(Errc::os_error,
                   "user: this root may not change its groups (CAP_SETGID); start the daemon as "
                   "that user instead");
  const bool must_join = group && *group != getegid();
  if (may_set_groups && (user || must_join))
    if (auto joined = join_group(user ? user->groups : own_groups(), group); !joined) return joined;
  if (auto bounded = drop_bounding_set(); !bounded) return bounded;
  if (user)
    if (auto became = become(*user); !became) return became;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return os_failure("no_new_privs");
  return drop_capabilities();
}

}  // namespace kvhive
