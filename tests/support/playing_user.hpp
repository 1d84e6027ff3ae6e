#pragma once
// Acts as another user for a while. Needs root, and a user namespace that has other users.

#include <grp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.hpp"
#include "tests/support/child_process.hpp"

namespace kvhive::testing {

// Numbers that no known machine uses. Tests look up and leave nothing under them.
inline constexpr uid_t kAlice = 60'001, kBob = 60'002, kStrangers = 70'000;
inline constexpr gid_t kGuests = 60'000, kStaff = 60'010;

inline bool become(uid_t user, gid_t group) {
  return setgroups(0, nullptr) == 0 && setegid(group) == 0 && seteuid(user) == 0;
}

inline bool can_play_users() {
  ChildProcess child([] {
    if (!become(kAlice, kStaff)) _exit(1);
  });
  return ended_well(child.wait());
}

/// While an object of this class exists, this process acts as `user` with no group but `group`. The
/// kernel reports them to the processes that it connects to.
class PlayingUser {
 public:
  explicit PlayingUser(uid_t user, gid_t group = kGuests) { KV_CHECK(become(user, group), errno); }
  PlayingUser(const PlayingUser&) = delete;
  PlayingUser& operator=(const PlayingUser&) = delete;
  ~PlayingUser() {
    KV_CHECK(seteuid(0) == 0 && setegid(0) == 0, errno);
    prctl(PR_SET_DUMPABLE, 1);  // the change of user cleared it; LeakSanitizer needs it
  }
};

}  // namespace kvhive::testing

/// For a gtest; ends it where users cannot be played.
#define KV_SKIP_UNLESS_WE_CAN_PLAY_USERS() \
  if (!can_play_users()) GTEST_SKIP() << "NOT RUN: needs root, to play several users"
