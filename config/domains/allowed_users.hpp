#pragma once
// Who may connect to the daemon's socket, as the operator writes it: "owner", "everybody" or
// "@GROUP".

#include <cstdint>
#include <string>

#include "base/expected.hpp"

namespace kvhive {

struct AllowedUsers {
  enum class Kind : std::uint8_t {
    owner,      ///< the user that the daemon runs as
    everybody,  ///< every local user
    group,      ///< the members of `group`
  };
  Kind kind = Kind::owner;
  std::string group;  ///< its name or number, without the '@'; for Kind::group

  friend bool operator==(const AllowedUsers&, const AllowedUsers&) = default;
};

/// Errors name the value and what may be written instead. Does not look the group up.
[[nodiscard]] Expected<AllowedUsers> parse_allowed_users(const std::string& text);

/// As parse_allowed_users() reads it.
std::string to_string(const AllowedUsers& users);

}  // namespace kvhive
