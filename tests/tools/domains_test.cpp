// Which domain a user gets, by the operator's rules and the uid and groups that the kernel reports;
// and the modes of the socket.

#include "tools/keeper/domains.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ipc/listener.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr uid_t kOwner = 1000, kAlice = 1001, kBob = 1002;
constexpr gid_t kUsers = 5000, kStaff = 5001, kGuests = 5002;

Expected<Domains> resolve(Sharing sharing, const std::string& rules = "") {
  Options options;
  options.sharing = sharing;
  options.domains = parse_domains(rules).value();
  return Domains::resolve(options, {kOwner, {kUsers}});
}

uid_t overflow_uid() {
  uid_t uid = 0;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid;
}

TEST(Domains, AreOneForEachUserUnlessTheOperatorSaysOtherwise) {
  Options options;
  Domains domains = Domains::resolve(options, {kOwner, {kUsers}}).value();
  const DomainId alice = domains.of({kAlice, {kUsers}}).value();
  const DomainId bob = domains.of({kBob, {kUsers}}).value();
  EXPECT_EQ(domains.of({kOwner, {kUsers}}).value(), DomainId{0});
  EXPECT_NE(alice, DomainId{0});
  EXPECT_NE(alice, bob);
  EXPECT_EQ(domains.of({kAlice, {kStaff}}).value(), alice) << "the same user connects again";
  EXPECT_THAT(domains.names(), ElementsAre("uid-1000", "uid-1001", "uid-1002"));
}

Expected<Domains> with_shares(const std::string& shares) {
  Options options;
  options.shares = parse_shares(shares).value();
  return Domains::resolve(options, {kOwner, {kUsers}});
}

TEST(Domains, WithAShareOfTheBlocksHaveTheLowestNumbers) {
  Domains domains = with_shares(
                        "uid-1002=weight:2;uid-1001=min-blocks:25%;"
                        "uid-1000=max-blocks:50%;uid-1003=min-blocks:7,max-blocks:9")
                        .value();
  EXPECT_THAT(domains.names(), ElementsAre("uid-1000", "uid-1001", "uid-1003"));
  EXPECT_EQ(domains.of({kAlice, {kUsers}}).value(), DomainId{1});
  const auto limits = domains.block_limits(100).value();
  EXPECT_EQ(limits[0], (BlockLimits{.min = 0, .max = 50}));
  EXPECT_EQ(limits[1], (BlockLimits{.min = 25, .max = 0}));
  EXPECT_EQ(limits[2], (BlockLimits{.min = 7, .max = 9}));
  EXPECT_EQ(limits[3], BlockLimits{});
}

TEST(Domains, SharesOfBlocksThatThereAreNotAreRefused) {
  const auto refused = [](const char* shares, std::uint32_t blocks) {
    return with_shares(shares).value().block_limits(blocks).error().text;
  };
  EXPECT_THAT(refused("uid-7=min-blocks:60;uid-8=min-blocks:50%", 100),
              HasSubstr("shares: 'min-blocks:50%' of 'uid-8' makes 110 blocks with the minimums "
                        "before it, but the device tier has 100 blocks; lower min-blocks"));
  EXPECT_THAT(refused("uid-7=min-blocks:60,max-blocks:50%", 100),
              HasSubstr("shares: 'max-blocks:50%' of 'uid-7' is less than its min-blocks:60"));
  std::string many;
  for (int i = 1; i <= 8; ++i) many += "uid-" + std::to_string(i) + "=min-blocks:1;";
  EXPECT_THAT(with_shares(many).error().text, HasSubstr("at most 7 domains"));
}

TEST(Domains, AreOneForAllIfTheOperatorWantsIt) {
  Domains domains = resolve(Sharing::all).value();
  EXPECT_EQ(domains.of({kAlice, {kUsers}}).value(), DomainId{0});
  EXPECT_EQ(domains.of({kBob, {kStaff}}).value(), DomainId{0});
  EXPECT_THAT(domains.names(), ElementsAre("all"));
}

TEST(Domains, NamedByTheOperatorHoldTheirMembersOnly) {
  Domains domains = resolve(Sharing::all, "team=1001,@5001").value();
  const DomainId team = domains.of({kAlice, {kUsers}}).value();
  EXPECT_EQ(domains.names()[team.value], "team");
  EXPECT_EQ(domains.of({kBob, {kUsers, kStaff}}).value(), team) << "by a supplementary group";
  EXPECT_EQ(domains.of({kBob, {kStaff}}).value(), team);
  EXPECT_EQ(domains.names()[domains.of({kBob, {kUsers}}).value().value], "all");
}

TEST(Domains, RefuseUnlistedUsersWithSharingListed) {
  Domains domains = resolve(Sharing::listed, "team=1001").value();
  EXPECT_TRUE(domains.of({kAlice, {}}).has_value());
  const auto refused = domains.of({kBob, {}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("user 1002 is in none of the domains"));
  EXPECT_THAT(refused.error().text, HasSubstr("under domains"));
  EXPECT_THAT(domains.names(), ElementsAre("team")) << "the owner is not listed either";
}

TEST(Domains, AreGivenToWhoAsksForThemOnlyAsTheRulesAllow) {
  Domains domains = resolve(Sharing::user, "team=@5001;guests=@5002;solo=1001").value();
  const auto asked = [&](const char* name, const PeerIdentity& client,
                         Asker asker = Asker::any_user) {
    const auto given = domains.asked_for(name, client, asker);
    return given ? domains.names()[given->value] : given.error().text;
  };
  const PeerIdentity of_both{kBob, {kUsers, kStaff, kGuests}}, of_none{kBob, {kUsers}};
  EXPECT_EQ(asked("team", of_both), "team") << "which it could have by leaving the other group";
  EXPECT_EQ(asked("guests", of_both), "guests");
  EXPECT_EQ(asked("uid-1002", of_none), "uid-1002") << "its own";
  EXPECT_EQ(asked("solo", {kAlice, {kUsers}}), "solo");
  const auto refused = HasSubstr("may not ask for domain");
  EXPECT_THAT(asked("team", of_none), refused);
  EXPECT_THAT(asked("uid-1001", of_none), refused);
  EXPECT_THAT(asked("team", {kAlice, {kStaff}}), refused) << "a rule names the user itself";
  EXPECT_EQ(asked("guests", {kOwner, {}}, Asker::trusted), "guests");
  EXPECT_THAT(asked("nobodys", {kOwner, {}}, Asker::trusted), HasSubstr("no rule names it"));
  EXPECT_THAT(asked("uid-1002", {kOwner, {}}, Asker::trusted), refused)
      << "numbers without end would be given out";
  EXPECT_THAT(
      asked("team\nengine 0 has died", of_both),
      ::testing::AllOf(HasSubstr("is no name of a domain"), ::testing::Not(HasSubstr("died"))))
      << "the log would have a line that a stranger wrote";
}

TEST(Domains, ARuleForTheUserGoesBeforeOneForItsGroup) {
  Domains domains = resolve(Sharing::user, "team=@5001;solo=1001").value();
  EXPECT_EQ(domains.names()[domains.of({kAlice, {kStaff}}).value().value], "solo");
}

/// If either domain were taken, a client could choose by leaving the other group.
TEST(Domains, RefuseAUserWhoseGroupsDisagree) {
  Domains domains = resolve(Sharing::user, "team=@5001;others=@5002").value();
  const auto refused = domains.of({kAlice, {kStaff, kGuests}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("'team' and 'others'"));
  EXPECT_THAT(refused.error().text, HasSubstr("name the user itself"));
}

TEST(Domains, LookNamesUpInTheSystem) {
  Domains domains = resolve(Sharing::user, "system=root,@daemon").value();
  const DomainId system = domains.of({0, {0}}).value();
  EXPECT_EQ(domains.names()[system.value], "system");
  EXPECT_EQ(domains.of({kAlice, {1}}).value(), system) << "group daemon is number 1 everywhere";
}

TEST(Domains, RefuseNamesTheSystemDoesNotKnow) {
  for (const char* member : {"nosuchuser", "@nosuchgroup", "99999999999", "-1"}) {
    const auto refused = resolve(Sharing::user, std::string("team=") + member);
    ASSERT_FALSE(refused.has_value()) << member;
    EXPECT_THAT(refused.error().text,
                HasSubstr("domains: '" + std::string(member) + "' in 'team' is unknown"));
    EXPECT_THAT(refused.error().text, HasSubstr("give its number"));
  }
}

TEST(Domains, RefuseTwoSpellingsOfOneUserInTwoDomains) {
  const auto refused = resolve(Sharing::user, "a=root;b=0");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("'0' (number 0) is in 'a' and again in 'b'"));
  EXPECT_TRUE(resolve(Sharing::user, "a=root,0").has_value())
      << "one user twice in the same domain is allowed";
}

/// The kernel reports this uid for all users that have no number in this user namespace.
TEST(Domains, DoNotTakeAllUsersWithoutANumberForOneUser) {
  const uid_t nobody = overflow_uid();
  EXPECT_THAT(resolve(Sharing::user).value().of({nobody, {}}).error().text,
              HasSubstr("stands for"));
  EXPECT_TRUE(resolve(Sharing::all).value().of({nobody, {}}).has_value());
  EXPECT_TRUE(
      resolve(Sharing::user, "n=" + std::to_string(nobody)).value().of({nobody, {}}).has_value());
}

TEST(Domains, HaveRoomFor65536AndKeepTheirNumbers) {
  Domains domains = resolve(Sharing::user).value();
  for (uid_t uid = 100'000; uid < 100'000 + 65'535; ++uid)
    ASSERT_TRUE(domains.of({uid, {}}).has_value()) << uid;
  const auto refused = domains.of({kAlice, {}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("all 65536 domains are given out"));
  EXPECT_EQ(domains.of({100'000, {}}).value(), DomainId{1});
  EXPECT_EQ(domains.of({165'534, {}}).value(), DomainId{65'535});
}

TEST(PeerIdentity, IsWhatTheKernelSays) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  const PeerIdentity peer = PeerIdentity::of_socket(one.get());
  const PeerIdentity ourselves = PeerIdentity::of_this_process();
  EXPECT_EQ(peer.uid, geteuid());
  EXPECT_THAT(peer.groups, UnorderedElementsAreArray(ourselves.groups));
}

// -- the socket

class SocketAccessTest : public ::testing::Test {
 protected:
  static mode_t mode_of(const std::filesystem::path& path) {
    struct stat status {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  static gid_t group_of(const std::filesystem::path& path) {
    struct stat status {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_gid;
  }
  TempDirectory base_;
  std::filesystem::path directory_ = base_.path() / "run", socket_ = directory_ / "kv.sock";
};

TEST_F(SocketAccessTest, IsForTheOwnerOnly) {
  const auto listener =
      Listener::open(socket_, resolve_permissions({AllowedUsers::Kind::owner, ""}).value());
  ASSERT_TRUE(listener.has_value()) << listener.error().text;
  EXPECT_EQ(mode_of(socket_), 0600u);
  EXPECT_EQ(mode_of(directory_), 0700u);
}

TEST_F(SocketAccessTest, IsForAllUsersWithoutShowingTheDirectory) {
  const auto listener =
      Listener::open(socket_, resolve_permissions({AllowedUsers::Kind::everybody, ""}).value());
  ASSERT_TRUE(listener.has_value()) << listener.error().text;
  EXPECT_EQ(mode_of(socket_), 0666u);
  EXPECT_EQ(mode_of(directory_), 0711u);
}

TEST_F(SocketAccessTest, IsForAGroup) {
  const auto listener = Listener::open(
      socket_, resolve_permissions({AllowedUsers::Kind::group, std::to_string(getegid())}).value());
  ASSERT_TRUE(listener.has_value()) << listener.error().text;
  EXPECT_EQ(mode_of(socket_), 0660u);
  EXPECT_EQ(mode_of(directory_), 0710u);
  EXPECT_EQ(group_of(socket_), getegid());
  EXPECT_EQ(group_of(directory_), getegid());
}

TEST_F(SocketAccessTest, LeavesTheOperatorsDirectoryAsItIs) {
  std::filesystem::create_directory(directory_);
  ASSERT_EQ(chmod(directory_.c_str(), 0750), 0);
  const auto listener =
      Listener::open(socket_, resolve_permissions({AllowedUsers::Kind::everybody, ""}).value());
  ASSERT_TRUE(listener.has_value()) << listener.error().text;
  EXPECT_EQ(mode_of(directory_), 0750u);
}

TEST_F(SocketAccessTest, RefusesADirectoryInWhichOthersCouldPutAnotherSocket) {
  std::filesystem::create_directory(directory_);
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  const auto refused = Listener::open(socket_, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("everybody may write to its directory"));
  ASSERT_EQ(chmod(directory_.c_str(), 01777), 0);
  EXPECT_TRUE(Listener::open(socket_, {}).has_value())
      << "with the sticky bit, as in /tmp, no other user may remove the socket";
}

TEST_F(SocketAccessTest, NamesAGroupThatIsUnknownOrNotTheDaemons) {
  EXPECT_THAT(resolve_permissions({AllowedUsers::Kind::group, "nosuchgroup"}).error().text,
              HasSubstr("socket-access: '@nosuchgroup' names a group unknown to this system"));
  if (geteuid() == 0) return;  // root may give a file to any group
  const auto refused =
      Listener::open(socket_, resolve_permissions({AllowedUsers::Kind::group, "root"}).value());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("must be a member of it"));
  EXPECT_FALSE(std::filesystem::exists(directory_)) << "nothing is left behind";
}

}  // namespace
}  // namespace kvhive
