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

/// The user with this name or number, with its groups. Error: there is none.
[[nodiscard]] Expected<RunAs> find_user(const std::string& name_or_number);

/// Makes a directory for that user if it is missing (its parent must be there). Leaves one that is
/// there as it is.
[[nodiscard]] Expected<void> make_directory_for(const RunAs& user, const std::string& path);

/// Whether Options::user means a change. Error: it would be one, but this process is not root.
[[nodiscard]] Expected<std::optional<RunAs>> wanted_user(const Options& options);

/// Becomes that user, if there is one; gives up all capabilities for good, so that no program it
/// starts can have any. Root keeps what does not take a capability, and stays a member of the group
/// in Options::socket_access, which may have the socket. Raises the limit of locked memory first if
/// Options::lock_metadata needs it. The process must have one thread.
[[nodiscard]] Expected<void> drop_privileges(const Options& options,
                                             const std::optional<RunAs>& user);

}  // namespace kvhive
