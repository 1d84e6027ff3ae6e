// Processes of other users take what they can get. The daemon's own user and honest strangers do
// not notice.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>

#include "ipc/channel/client_channel.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/descriptor_line.hpp"
#include "tests/support/herd.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/stuck_memory.hpp"
#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

const std::string kStrangersPrompt = "In the beginning";

class Strangers : public ::testing::Test {
 protected:
  void SetUp() override { KV_SKIP_UNLESS_WE_CAN_PLAY_USERS(); }
  void start(const BeforeExec& before_exec = {}) {
    daemon_.emplace(std::vector<std::string>{"--kv-cache-memory-bytes", "8M", "--socket-access",
                                             "everybody", "--sharing", "all"},
                    before_exec);
    // The test made the directory, so the daemon does not set its mode.
    ASSERT_EQ(chmod(daemon_->directory().c_str(), 0711), 0);
  }
  Expected<UniqueFd> connect_as(uid_t user) const {
    const PlayingUser playing(user);
    return connect_to_daemon(daemon_->socket());
  }
  void expect_service() const {
    EXPECT_EQ(daemon_->connect().generate(request_of(kStrangersPrompt, 4))->tokens.size(), 4u);
    const PlayingUser playing(kBob);
    auto client = Client::connect(client_options(daemon_->socket()));
    ASSERT_TRUE(client.has_value()) << client.error().text;
    EXPECT_EQ(client->generate(request_of(kStrangersPrompt, 4))->tokens.size(), 4u);
  }
  void expect_nothing_happened() const {
    EXPECT_EQ(daemon_->status()["engines"][0]["restarts"], 0);
    EXPECT_EQ(daemon_->status()["steward"]["restarts"], 0);
    EXPECT_TRUE(daemon_->fsck_is_clean());
  }

  std::optional<Daemon> daemon_;
};

TEST_F(Strangers, SilentConnectionsLockNobodyOut) {
  start([] {
    const rlimit few{1024, 1024};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 2000; ++i)
    if (auto socket = connect_as(kAlice)) silent.push_back(std::move(*socket));
  expect_service();
  EXPECT_GE(silent.size(), 1000u) << "the test needs more connections than the daemon has room for";
  expect_nothing_happened();
}

/// Descriptors in packets that nobody reads count against the daemon's user, who could send none at
/// all.
TEST_F(Strangers, AnswersThatNobodyReadsKeepNobodyFromDescriptors) {
  start([] {
    const rlimit few{256, 256};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  std::vector<UniqueFd> unread;
  for (int i = 0; i < 200; ++i) {
    auto socket = connect_as(kAlice);
    if (!socket || !send_packet(socket->get(), ClientHello{kLeastChannelBytes})) continue;
    while (look_at_next_packet(socket->get()) == NextPacket::none) {
    }
    (void)send(socket->get(), "x", 1, MSG_NOSIGNAL);  // the daemon closes it, still unread
    unread.push_back(std::move(*socket));
  }
  expect_service();
  signal_process(daemon_->engine(0)["pid"], SIGKILL);
  expect_service();
  EXPECT_EQ(daemon_->status()["engines"][0]["restarts"], 1);
  EXPECT_EQ(daemon_->cli({"stop"}).exit_code, 0);
}

TEST_F(Strangers, AUserThatTakesAllTheChannelsItCanLeavesOthersTheirs) {
  start();
  std::vector<Client> greedy;
  {
    const PlayingUser playing(kAlice);
    while (auto client = Client::connect(client_options(daemon_->socket(), kAnyEngine, 256 << 20)))
      greedy.push_back(std::move(*client));
  }
  EXPECT_LE(greedy.size(), 4u);
  expect_service();
  greedy.clear();
  expect_nothing_happened();
}

/// What a client will need is kept for it from its hello on.
TEST_F(Strangers, ChannelsThatAreSealedAllTogetherLeaveTheOwnerDescriptors) {
  start([] {
    const rlimit few{256, 256};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  struct Welcomed {
    UniqueFd socket;
    ClientChannel channel;
  };
  std::vector<Welcomed> welcomed;
  for (const uid_t user : {kAlice, kStrangers, kStrangers + 1}) {
    while (auto socket = connect_as(user)) {
      auto welcome = say_hello(socket->get(), ClientHello{kLeastChannelBytes});
      if (!welcome) break;
      auto& fds = welcome->fds;
      const auto bytes = welcome->message.channel_bytes;
      welcomed.push_back(
          {std::move(*socket),
           ClientChannel::open(std::move(fds[0]), fds[1], bytes, std::move(fds[2])).value()});
    }
  }
  EXPECT_GE(welcomed.size(), 16u);
  for (const Welcomed& client : welcomed)
    EXPECT_TRUE(send_packet(client.socket.get(), RequestsSealed{}).has_value());
  expect_service();
  for (Welcomed& client : welcomed) {
    const auto slot = client.channel.submit(channel_request_of("In the", 2)).value();
    EXPECT_TRUE(eventually([&] { return client.channel.read(slot).reason != FinishReason::none; }));
  }
  expect_nothing_happened();
}

/// The last close of such a descriptor takes an hour. It is sent in a hello and after one, and the
/// daemon still serves and ends at once.
TEST_F(Strangers, DescriptorsThatTakeForEverToCloseStopNobody) {
  start();
  LingeringSocket lingering(3600);
  std::vector<UniqueFd> sockets;
  bool was_sent = false;
  for (int i = 0; i < 4; ++i) {
    sockets.push_back(std::move(*connect_as(kAlice)));
    const bool says_hello_first = i % 2 != 0;
    if (says_hello_first) {
      ASSERT_TRUE(say_hello(sockets.back().get(), ClientHello{1 << 20}));
    }
    // Refused by the kernel since Linux 6.16, by the daemon before.
    was_sent |= send_packet(sockets.back().get(), ClientHello{1 << 20}, {lingering.socket.get()})
                    .has_value();
  }
  if (was_sent) lingering.socket = UniqueFd();  // the last descriptor is in a packet now
  expect_service();
  sockets.clear();
  expect_service();
  expect_nothing_happened();
  daemon_->stop();
}

/// A stranger with a channel of its own, on whose bells ten thousand epolls wait.
class HerdKeeper {
 public:
  explicit HerdKeeper(UniqueFd connection) : connection_(std::move(connection)) {
    auto welcome = say_hello(connection_.get(), ClientHello{kLeastChannelBytes});
    KV_CHECK(welcome.has_value() && welcome->fds.size() == 4);
    auto& fds = welcome->fds;
    bell_ = std::move(fds[3]);
    herds_.emplace_back(bell_.get(), 100, 100);
    herds_.emplace_back(fds[2].get(), 10, 100);
    const auto bytes = welcome->message.channel_bytes;
    channel_.emplace(
        ClientChannel::open(std::move(fds[0]), fds[1], bytes, std::move(fds[2])).value());
    KV_CHECK(send_packet(connection_.get(), RequestsSealed{}).has_value());
  }
  void submit_malformed_requests() {
    for (std::size_t slot = 1; slot < kChannelSlots; ++slot)
      submit_raw(channel_->raw_requests().data(), slot, RequestBody{});
    ChannelRequest request;
    request.prompt_tokens = {1};
    (void)channel_->submit(request);  // in the first slot; rings for all
  }
  bool all_are_refused() {
    for (std::size_t slot = 1; slot < kChannelSlots; ++slot)
      if (const SlotState state = answer_in(channel_->raw_answers().data(), slot).state.load();
          state.number == 0 || state.phase() != Phase::finished)
        return false;
    return true;
  }
  int rings() const {
    int bytes = 0;
    KV_CHECK(ioctl(bell_.get(), FIONREAD, &bytes) == 0, errno);
    return bytes;
  }

 private:
  UniqueFd connection_, bell_;
  std::optional<ClientChannel> channel_;
  std::vector<Herd> herds_;
};

/// How often the engine's threads of lower priority have gone to sleep.
long sleeps_of_background_threads(pid_t engine) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(engine) + "/task";
  long sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    const int id = std::stoi(task.path().filename());
    if (getpriority(PRIO_PROCESS, static_cast<id_t>(id)) <= getpriority(PRIO_PROCESS, 0)) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:"))
        sleeps += std::stol(line.substr(line.find(':') + 1));
  }
  return sleeps;
}

/// Each ring wakes them all, in the thread that rings, and so does the close of the bells.
TEST_F(Strangers, AHerdOnAStrangersBellIsWokenByAThreadThatServesNobodyElse) {
  start();
  const pid_t engine = daemon_->status()["engines"][0]["pid"];
  expect_service();
  std::optional<HerdKeeper> stranger(*connect_as(kAlice));
  const long before = sleeps_of_background_threads(engine);
  stranger->submit_malformed_requests();
  EXPECT_TRUE(eventually([&] { return stranger->all_are_refused() && stranger->rings() > 0; }));
  EXPECT_TRUE(eventually([&] { return sleeps_of_background_threads(engine) > before; }));
  EXPECT_LT(stranger->rings(), 100) << "one ring is enough for all that was refused in one pass";
  const long after_rings = sleeps_of_background_threads(engine);
  stranger.reset();
  EXPECT_TRUE(eventually([&] { return sleeps_of_background_threads(engine) > after_rings; }));
  expect_service();
  expect_nothing_happened();
}

/// A stranger that writes to its channel's file from such memory. The kernel keeps the file locked
/// meanwhile.
class FileLocker {
 public:
  explicit FileLocker(const Daemon& daemon) {
    DescriptorLine line;
    client_ = ChildProcess([&] {
      KV_CHECK(become(kAlice, kGuests), errno);
      const auto socket = connect_to_daemon(daemon.socket());
      const auto welcome = say_hello(socket->get(), ClientHello{kLeastChannelBytes});
      KV_CHECK(welcome.has_value());
      DescriptorLine::send(line.child(), 0, welcome->fds[0].get());
      pause();
    });
    const UniqueFd file = DescriptorLine::receive(line.parent()).fd;
    // A process of its own, so that the lock outlives the client.
    writer_ = ChildProcess([&] {
      const auto never = memory_that_never_arrives();
      (void)!pwrite(file.get(), never.data(), never.size(), 4096);
    });
    EXPECT_TRUE(eventually([&] { return state_of(writer_.pid()) == 'S'; })) << "does not wait";
  }
  void close_channel() { client_.kill_and_wait(); }

 private:
  ChildProcess client_, writer_;
};

TEST_F(Strangers, AClientThatLocksItsChannelsFileStopsNobodyWhenAnEngineDies) {
  if (!can_make_memory_that_never_arrives()) GTEST_SKIP() << kForbidsUserfaultfd;
  start();
  const FileLocker locker(*daemon_);
  const pid_t engine = daemon_->status()["engines"][0]["pid"];
  signal_process(engine, SIGKILL);
  expect_service();
  daemon_->stop();
}

TEST_F(Strangers, AClientThatLocksItsChannelsFileAndLeavesStopsNobody) {
  if (!can_make_memory_that_never_arrives()) GTEST_SKIP() << kForbidsUserfaultfd;
  start();
  FileLocker locker(*daemon_);
  locker.close_channel();
  expect_service();
  expect_nothing_happened();
  daemon_->stop();  // ends although the file is still locked
}

}  // namespace
}  // namespace kvhive::testing
