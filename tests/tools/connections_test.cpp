// The keeper's connections and what strangers (processes of other users) can do to them. The keeper
// and the strangers are this process, which changes its user in between.

#include "tools/keeper/connections.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/stat.h>

#include <functional>
#include <optional>

#include "ipc/listener.hpp"
#include "ipc/pidfd.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/namespaces.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/no_tables.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Longer than any test may take: a keeper that waits for such a close hangs.
constexpr int kForEver = 3600;

class ConnectionsTest : public ::testing::Test, public Connections::Events {
 protected:
  ConnectionsTest() {
    alarm(120);  // a keeper that waits for a close would hang
    chmod(directory_.path().c_str(), 0711);
  }
  ~ConnectionsTest() override { alarm(0); }

  void SetUp() override { KV_SKIP_UNLESS_WE_CAN_PLAY_USERS(); }

  void on_packet(Peer& peer, Packet packet) override {
    heard_.push_back(packet.type());
    if (!peer.is_welcome && !connections_->identify(peer, packet)) return;
    peer.is_welcome = true;
    if (!answers_) return;
    if (auto may = connections_->may_answer(peer); !may)
      return connections_->refuse(peer, may.error());
    const UniqueFd file{open("/dev/null", O_RDONLY | O_CLOEXEC)};
    KV_CHECK(send_packet(peer.socket.get(), ClientWelcome{}, {file.get()}).has_value());
    connections_->answered(peer);
  }
  void on_gone(const Peer& peer) override { gone_.push_back(peer.uid); }

  /// \param descriptors  passed_on = as before Linux 6.16
  void listen(const ConnectionLimits& limits = {},
              PeerDescriptors descriptors = PeerDescriptors::refused) {
    const SocketPermissions everybody{0666, 0711, std::nullopt};
    listener_.emplace(Listener::open(path(), everybody, descriptors).value());
    connections_.emplace(tables_, loop_, *this, limits);
    connections_->listen(listener_->fd());
  }
  std::string path() const { return (directory_.path() / "socket").string(); }

  UniqueFd connect_as(uid_t user) const {
    const PlayingUser playing(user);
    return connect_to_daemon(path()).value();
  }
  /// Runs the keeper's loop until `holds`.
  void serve_until(const std::function<bool()>& holds) {
    const std::function<void()> look = [&] {
      if (holds()) return loop_.stop();
      loop_.after(std::chrono::milliseconds(1), look);
    };
    look();
    loop_.run();
  }
  /// A client that has said hello, and was heard.
  UniqueFd come(uid_t user) {
    UniqueFd client = connect_as(user);
    const std::size_t heard = heard_.size();
    KV_CHECK(send_packet(client.get(), ClientHello{}).has_value());
    serve_until([&] { return heard_.size() > heard; });
    return client;
  }
  std::string refusal_of(const UniqueFd& socket) {
    const auto packet = receive_answer(socket.get());
    if (!packet || !*packet) return "hung up without a word";
    const auto refused = (*packet)->as<Refused>();
    return refused ? refused->reason.str() : "no refusal";
  }
  std::size_t peers() const { return tables_.peers.size(); }

  TempDirectory directory_;
  EventLoop loop_ = EventLoop::create().value();
  Tables tables_ = no_tables();
  std::optional<Listener> listener_;
  std::optional<Connections> connections_;
  bool answers_ = false;  ///< sends each peer an answer with a descriptor
  std::vector<MessageType> heard_;
  std::vector<uid_t> gone_;
};

TEST_F(ConnectionsTest, AClientNeedsNoPidfdInItsHelloAndIsGoneWhenItsSocketCloses) {
  listen();
  UniqueFd client = connect_as(kAlice);
  ASSERT_TRUE(send_packet(client.get(), ClientHello{}).has_value());
  serve_until([&] { return !heard_.empty(); });
  EXPECT_THAT(heard_, ElementsAre(MessageType::client_hello));
  client = UniqueFd();
  serve_until([&] { return peers() == 0; });
  EXPECT_THAT(gone_, ElementsAre(kAlice));
}

/// The keeper, in a PID namespace of its own, sees no number of the peer, which names another
/// process in its place. Believed, that one would be killed when this peer is fenced.
TEST_F(ConnectionsTest, APeerWithoutAPidIsNotTheProcessThatItNames) {
  if (!can_make_namespaces()) GTEST_SKIP() << "NOT RUN: needs root, to make namespaces";
  listen({}, PeerDescriptors::passed_on);
  const UniqueFd client = connect_to_daemon(path()).value();
  if (!pidfd_of_peer(client.get()).value())
    GTEST_SKIP() << "NOT RUN: needs SO_PEERPIDFD (Linux 6.5); before, the hello is believed";
  const pid_t sender = getpid();
  const ChildProcess victim([] { pause(); });
  const UniqueFd named = pidfd_of(victim.pid()).value();
  ASSERT_TRUE(send_packet(client.get(), EngineHello{}, {named.get()}).has_value());
  ChildProcess outside([&] {
    // Not in_namespaces(): /proc stays the test's, and tells by its numbers whose a pidfd is.
    KV_CHECK(unshare(CLONE_NEWPID) == 0, errno);
    ChildProcess keeper([&] {
      serve_until([&] { return !heard_.empty(); });
      const Peer& peer = tables_.peers.begin()->second;
      KV_CHECK(peer.pid == 0, peer.pid);
      KV_CHECK(is_pidfd_of(peer.pidfd, sender));
    });
    KV_CHECK(ended_well(keeper.wait()));
  });
  EXPECT_TRUE(ended_well(outside.wait()));
}

/// A timer for each connection, set until its hello is due, would be memory that anybody can take.
TEST_F(ConnectionsTest, ProcessesThatConnectAndLeaveTakeNoMemoryMeanwhile) {
  if (kUnderSanitizer) GTEST_SKIP() << "NOT RUN: a sanitizer keeps freed memory";
  listen();
  const auto come_and_go = [&](int times) {
    for (int i = 0; i < times; ++i) {
      UniqueFd client = connect_as(kAlice);
      serve_until([&] { return peers() == 1; });
      client = UniqueFd();
      serve_until([&] { return peers() == 0; });
    }
    return mallinfo2().uordblks;
  };
  const std::size_t before = come_and_go(100);
  EXPECT_LT(come_and_go(500), before + 500 * 16);
}

TEST_F(ConnectionsTest, SinceLinux616DescriptorsCannotEvenBeSent) {
  listen();
  const UniqueFd client = connect_as(kAlice);
  const UniqueFd file{open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const int none = 0, so_passrights = 83;
  if (setsockopt(client.get(), SOL_SOCKET, so_passrights, &none, sizeof none) != 0)
    GTEST_SKIP() << "NOT RUN: this kernel is older";
  const auto sent = send_packet(client.get(), ClientHello{}, {file.get()});
  ASSERT_FALSE(sent.has_value());
  EXPECT_THAT(sent.error().text, HasSubstr("not permitted"));
}

/// A child's pid may be given to another process before the keeper has collected the child.
TEST(TablesTest, AStrangerIsNobodysChild) {
  Tables tables = no_tables();
  tables.steward.pid = 4711;
  Peer peer;
  peer.pid = 4711;
  peer.uid = geteuid();
  EXPECT_EQ(tables.child_of(peer), &tables.steward);
  peer.uid = kAlice;
  EXPECT_EQ(tables.child_of(peer), nullptr);
}

TEST_F(ConnectionsTest, APacketThatKilledThreeKeepersIsNotHandledAgain) {
  Inbox inbox;
  listen();
  connections_->receive_into(inbox);
  const UniqueFd client = connect_as(kAlice);
  ASSERT_TRUE(send_packet(client.get(), ClientHello{}).has_value());
  serve_until([&] { return !heard_.empty(); });
  for (int killed = 1; killed <= 2; ++killed) {
    connections_->finish_inbox();  // as the successor does
    ASSERT_EQ(peers(), 1u);
  }
  EXPECT_THAT(heard_, SizeIs(3));
  connections_->finish_inbox();
  EXPECT_THAT(heard_, SizeIs(3));
  EXPECT_EQ(peers(), 0u);
}

/// Each of these would make the keeper wait for an hour if it closed the descriptor itself.
class LingeringDescriptor : public ConnectionsTest {
 protected:
  void SetUp() override {
    ConnectionsTest::SetUp();
    if (!IsSkipped()) listen({}, PeerDescriptors::passed_on);
  }
  /// Sends a hello with the descriptor. The descriptor in the packet is then the last one.
  void send_lingering(const UniqueFd& client) {
    ASSERT_TRUE(send_packet(client.get(), ClientHello{}, {lingering_.socket.get()}).has_value());
    lingering_.socket = UniqueFd();
  }
  /// Whether the keeper goes on, and whether the file is closed: this process is the TCP peer, too.
  void expect_closed() {
    const UniqueFd peer{accept(lingering_.listener.get(), nullptr, nullptr)};
    serve_until([&] {
      std::array<char, 65536> data;
      ssize_t got;
      while ((got = recv(peer.get(), data.data(), data.size(), MSG_DONTWAIT)) > 0) {
      }
      return got == 0 || errno == ECONNRESET;
    });
  }

  LingeringSocket lingering_{kForEver};
};

TEST_F(LingeringDescriptor, IsRefusedUnreceived) {
  const UniqueFd client = connect_as(kAlice);
  send_lingering(client);
  serve_until([&] { return look_at_next_packet(client.get()) != NextPacket::none; });
  EXPECT_THAT(heard_, IsEmpty());
  EXPECT_THAT(refusal_of(client), HasSubstr("takes no file descriptors"));
  expect_closed();
}

TEST_F(LingeringDescriptor, MayLieUnreadBehindAMalformedPacket) {
  const UniqueFd client = connect_as(kAlice);
  ASSERT_EQ(send(client.get(), "x", 1, 0), 1);
  send_lingering(client);
  expect_closed();
}

TEST_F(LingeringDescriptor, MayComeBeforeTheConnectionIsAcceptedAndItsClientLeft) {
  UniqueFd client = connect_as(kAlice);
  send_lingering(client);
  client = UniqueFd();
  expect_closed();
}

TEST_F(LingeringDescriptor, DoesNotDelayTheKeepersEnd) {
  const UniqueFd accepted = connect_as(kAlice);
  serve_until([&] { return peers() == 1; });
  send_lingering(accepted);
  LingeringSocket other(kForEver);
  const UniqueFd unaccepted = connect_as(kBob);
  ASSERT_TRUE(send_packet(unaccepted.get(), ClientHello{}, {other.socket.get()}).has_value());
  other.socket = UniqueFd();
  listener_->remove_files();
  listener_->leave_open();
  connections_.reset();
  tables_.peers.clear();
  listener_.reset();
}

TEST_F(ConnectionsTest, ASilentUserLosesItsOldestConnectionsAndNobodyElseAny) {
  listen({.silent_of_user = 2});
  const UniqueFd bob = connect_as(kBob);
  std::vector<UniqueFd> alice;
  for (int i = 0; i < 5; ++i) alice.push_back(connect_as(kAlice));
  const auto is_closed = [](const UniqueFd& socket) {
    char byte;
    return recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  };
  serve_until([&] { return peers() == 3 && is_closed(alice[2]); });
  EXPECT_TRUE(is_closed(alice[0]) && is_closed(alice[1]) && is_closed(alice[2]));
  EXPECT_FALSE(is_closed(alice[3]) || is_closed(alice[4]) || is_closed(bob));
}

TEST_F(ConnectionsTest, AllSilentStrangersTogetherHaveALimitAndTheOwnerHasNone) {
  listen({.silent_of_all = 3});
  std::vector<UniqueFd> silent;
  for (const uid_t user : {kAlice, kBob, kAlice, kBob, kAlice}) silent.push_back(connect_as(user));
  std::vector<UniqueFd> own;
  for (int i = 0; i < 5; ++i) own.push_back(connect_to_daemon(path()).value());
  serve_until([&] { return peers() == 8; });
}

TEST_F(ConnectionsTest, AUserHasALimitOfConnections) {
  listen({.of_user = 2});
  std::vector<UniqueFd> alice;
  for (std::size_t i = 0; i < 3; ++i) {
    alice.push_back(connect_as(kAlice));
    ASSERT_TRUE(send_packet(alice.back().get(), ClientHello{}).has_value());
    if (i < 2) serve_until([&] { return heard_.size() == i + 1; });
  }
  const UniqueFd bob = connect_as(kBob);
  serve_until([&] { return peers() == 3; });
  EXPECT_THAT(refusal_of(alice[2]), HasSubstr("user 60001 has 2 connections, the most"));
}

/// Descriptors in unread packets count against the daemon's user.
TEST_F(ConnectionsTest, WhoReadsNoAnswersGetsNoMoreAlsoIfItsConnectionsWereClosed) {
  listen({.unread = {.of_user = 2, .of_all = 3}});
  answers_ = true;
  std::vector<UniqueFd> alice;
  for (int i = 0; i < 2; ++i) {
    alice.push_back(come(kAlice));
    ASSERT_EQ(send(alice.back().get(), "x", 1, 0), 1);  // malformed: the keeper closes it
    serve_until([&] { return peers() == 0; });
  }
  EXPECT_THAT(refusal_of(come(kAlice)), HasSubstr("user 60001 has not read the answers to 2"));
  UniqueFd bob = come(kBob);
  EXPECT_THAT(refusal_of(come(kBob)), HasSubstr("clients have not read the answers to 3"));
  bob = UniqueFd();
  ASSERT_TRUE(receive_answer(alice[0].get()).has_value());
  EXPECT_THAT(refusal_of(come(kAlice)), "no refusal");
  EXPECT_THAT(refusal_of(come(kBob)), "no refusal");
}

/// Then the connection holds its own other end, with the answer in it.
TEST_F(ConnectionsTest, WhoSendsItsOwnEndWithoutReadingItsAnswerLeavesNothing) {
  listen({.unread = {.of_user = 1, .of_all = 1}}, PeerDescriptors::passed_on);
  answers_ = true;
  UniqueFd alice = come(kAlice);
  ASSERT_TRUE(send_packet(alice.get(), ClientHello{}, {alice.get()}).has_value());
  alice = UniqueFd();
  serve_until([&] { return peers() == 0; });
  while (refusal_of(come(kBob)) != "no refusal") {
  }
}

TEST_F(ConnectionsTest, ASilentConnectionIsClosedWhenItsTimeIsOver) {
  listen({.for_hello = std::chrono::seconds(0)});
  const UniqueFd alice = connect_as(kAlice);
  serve_until([&] { return look_at_next_packet(alice.get()) != NextPacket::none; });
  EXPECT_EQ(peers(), 0u);
  EXPECT_THAT(refusal_of(alice), HasSubstr("nothing was said"));
}

TEST(LimitsFor, LeaveMostOfTheDescriptorsToOthers) {
  for (const std::uint64_t descriptors : {256u, 1024u, 20'000u, 1'048'576u}) {
    const ConnectionLimits limits = limits_for(descriptors);
    EXPECT_LE(limits.of_user * 6, std::max<std::uint64_t>(descriptors / 3, 48)) << descriptors;
    EXPECT_LE(limits.silent_of_user, limits.silent_of_all) << descriptors;
    EXPECT_GE(limits.kept_for_owner, 32u) << descriptors;
    EXPECT_LE(limits.unread.of_all * 3, descriptors / 2) << descriptors;
    EXPECT_LE(limits.unread.of_user, limits.unread.of_all) << descriptors;
  }
}

}  // namespace
}  // namespace kvhive::testing
