#pragma once
// Being another user for a while. Takes root.

#include <grp.h>
#include <unistd.h>

#include <cerrno>

#include "config/check.hpp"

namespace kvhive::testing {

// Nobody's on any machine we know of; nothing is looked up or left behind under them.
inline constexpr uid_t kAlice = 60'001, kBob = 60'002;
inline constexpr gid_t kGuests = 60'000, kStaff = 60'010;

/// While it lives, whatever we do is done as that user, of that group alone: the kernel says so to
/// whomever we connect to.
class PlayingUser {
 public:
  explicit PlayingUser(uid_t user, gid_t group = kGuests) {
    KV_CHECK(setgroups(0, nullptr) == 0 && setegid(group) == 0 && seteuid(user) == 0, errno);
  }
  PlayingUser(const PlayingUser&) = delete;
  PlayingUser& operator=(const PlayingUser&) = delete;
  ~PlayingUser() { KV_CHECK(seteuid(0) == 0 && setegid(0) == 0, errno); }
};

}  // namespace kvhive::testing
