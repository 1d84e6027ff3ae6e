#pragma once
// What a daemon or engine gives up before it opens anything: root's identity and capabilities.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/expected.hpp"
#include "config/options.hpp"

namespace kvhive {

/// A user that the daemon shall run as.
struct RunAs {
  uid_t uid = 0;
  gid_t gid = 0;              ///< primary group
  std::vector<gid_t> groups;  ///< all groups, `gid` included
};

/// The user with this name or number, with its groups. A number need not be known to the system;
/// then the user's only group has the same number. Error: there is no such name.
[[nodiscard]] Expected<RunAs> find_user(const std::string& name_or_number);

/// Makes a directory for that user if it is missing (its parent must be there). Leaves one that is
/// there as it is.
[[nodiscard]] Expected<void> make_directory_for(const RunAs& user, const std::string& path);

/// The user to change to. Nothing = Options::user is empty or names this process's user. Error: it
/// names another user, and this process is not root, or there is no such user.
[[nodiscard]] Expected<std::optional<RunAs>> wanted_user(const Options& options);

/// Becomes that user, if there is one. Gives up all capabilities for good, so that no program that
/// it starts can have any; root keeps what needs no capability, for example its own files. Joins
/// the group in Options::socket_access, because only a member may give the socket to a group. If
/// Options::lock_metadata is set, first raises the limit of locked memory. The process must have
/// one thread.
[[nodiscard]] Expected<void> drop_privileges(const Options& options,
                                             const std::optional<RunAs>& user);

}  // namespace kvhive
