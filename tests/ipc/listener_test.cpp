#include "ipc/listener.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "ipc/protocol.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ListenerTest : public ::testing::Test {
 protected:
  Listener open() const { return Listener::open(path(), {}).value(); }
  std::filesystem::path folder() const { return directory.path() / "made"; }
  std::string path() const { return folder() / "s"; }
  bool listens() const { return connect_to_daemon(path()).has_value(); }

  TempDirectory directory;
};

TEST_F(ListenerTest, RemovesItsSocketAndTheDirectoryItMade) {
  std::optional<Listener> listener(open());
  EXPECT_TRUE(listens());
  listener.reset();
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

TEST_F(ListenerTest, LeavesTheSocketThatAnotherDaemonMadeOnItsPath) {
  std::optional<Listener> first(open());
  ASSERT_EQ(unlink(path().c_str()), 0);
  const Listener second = open();
  first.reset();
  EXPECT_TRUE(listens()) << "the second daemon's socket was removed";
}

TEST_F(ListenerTest, LeavesTheDirectoryThatAnotherDaemonMadeOnItsPath) {
  std::optional<Listener> first(open());
  std::filesystem::remove_all(folder());
  // Another daemon has made the directory, and has not bound its socket yet.
  ASSERT_EQ(mkdir(folder().c_str(), 0700), 0);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(folder()));
}

TEST_F(ListenerTest, ADaemonThatListensIsNotReplaced) {
  const Listener first = open();
  const auto second = Listener::open(path(), {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Errc::already_running);
}

/// In a directory like /tmp, any user can lock the directory and keep the lock.
TEST_F(ListenerTest, AnotherUsersSocketIsRefusedByName) {
  KV_SKIP_UNLESS_WE_CAN_PLAY_USERS();
  const std::filesystem::path place = directory.path() / "of alice";
  ASSERT_TRUE(std::filesystem::create_directory(place));
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(chown(place.c_str(), kAlice, kGuests), 0);
  std::optional<Expected<Listener>> alices, bobs;
  {
    const PlayingUser playing(kAlice);
    alices.emplace(Listener::open(place / "s", {}));
  }
  ASSERT_TRUE((*alices).has_value()) << (*alices).error().text;
  {
    const PlayingUser playing(kBob);
    bobs.emplace(Listener::open(place / "s", {}));
  }
  ASSERT_FALSE((*bobs).has_value());
  EXPECT_THAT((*bobs).error().text, AllOf(HasSubstr("60001's"), HasSubstr("choose another path")));
}

TEST_F(ListenerTest, ADirectoryThatSomebodyKeepsLockedIsRefusedByName) {
  std::optional<Listener> listener(open());
  const UniqueFd lock{::open(folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  const auto refused = Listener::open(path() + "2", {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().text.find(folder().string() + " locked (flock)"), std::string::npos);
  listener.reset();
  EXPECT_FALSE(std::filesystem::exists(path())) << "a daemon removes its socket nevertheless";
}

/// A socket whose keeper has ended without removing it.
struct StaleSocket {
  std::string identity;
  pid_t keeper = 0;  ///< has ended
};

/// Makes the socket in a process that ends without removing it, as a kill does.
/// \param before_end  run by the keeper while it listens
StaleSocket leave_stale_socket(
    const std::string& path, const std::function<void()>& before_end = [] {}) {
  const pid_t pid = fork();
  if (pid == 0) {
    const auto listener = Listener::open(path, {});
    before_end();
    _exit(listener.has_value() ? 0 : 1);
  }
  waitpid(pid, nullptr, 0);
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0);
  return {std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino), pid};
}

TEST_F(ListenerTest, AStaleSocketIsRemovedOnlyIfItIsTheKeepersOwn) {
  const StaleSocket stale = leave_stale_socket(path());
  EXPECT_FALSE(remove_stale_socket(path(), "1:2", stale.keeper))
      << "the socket is another keeper's";
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_TRUE(remove_stale_socket(path(), stale.identity, stale.keeper));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ListenerTest, AStaleSocketIsRemovedAlsoIfAChildOfItsKeeperHasItOpenStill) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const StaleSocket stale = leave_stale_socket(path(), [&] {
    if (fork() != 0) return;
    close(ends[1]);
    char letter;
    (void)!read(ends[0], &letter, 1);  // until the test ends
    _exit(0);
  });
  EXPECT_TRUE(listens());
  EXPECT_FALSE(remove_stale_socket(path(), stale.identity, getpid())) << "another one's child";
  EXPECT_TRUE(remove_stale_socket(path(), stale.identity, stale.keeper));
  EXPECT_FALSE(std::filesystem::exists(path()));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(ListenerTest, AStaleSocketThatAnotherDaemonReplacedIsLeft) {
  const StaleSocket stale = leave_stale_socket(path());
  const Listener second = open();
  EXPECT_FALSE(remove_stale_socket(path(), stale.identity, stale.keeper));
  EXPECT_TRUE(listens());
}

TEST_F(ListenerTest, ItsIdentityIsThatOfTheFile) {
  const Listener listener = open();
  struct stat status {};
  ASSERT_EQ(lstat(path().c_str(), &status), 0);
  EXPECT_EQ(listener.identity(),
            std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino));
}

}  // namespace
}  // namespace kvhive::testing
