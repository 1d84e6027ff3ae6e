// kvhive pool fsck --repair: the steward repairs what the inspector has found.

#include <atomic>
#include <thread>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

class RepairedDaemon : public ::testing::Test {
 protected:
  RepairedDaemon() : memory(daemon.pool()) {
    const CommandResult done =
        daemon.cli({"generate", "--prompt", prompt, "--max-tokens", "2", "--ignore-eos"});
    EXPECT_EQ(done.exit_code, 0) << done.err;
  }

  Json generate() const {
    return daemon
        .cli({"generate", "--prompt", prompt, "--max-tokens", "2", "--ignore-eos", "--engine", "1",
              "--format", "json"})
        .json();
  }
  void lose_index() const {
    for (std::size_t b = 0; b < memory.layout().index_buckets; ++b)
      for (auto& way : memory.index()[b].way) way.store(0);
  }
  /// Sets a holder bit in the words of the last `count` free blocks, as no process does.
  void break_free_blocks(std::uint32_t count) const {
    const std::uint32_t end = memory.geometry().device_blocks;
    for (std::uint32_t id = end - count; id < end; ++id) memory.descriptors()[id].word.fetch_or(1);
  }
  pid_t steward() const { return daemon.procs()["steward"]["pid"].get<pid_t>(); }

  const std::string prompt = std::string(40, 'a') + " And God said, Let there be light";
  Daemon daemon;
  PoolMemory memory;
};

TEST_F(RepairedDaemon, FsckFindsCorruptionAndRepairRepairsIt) {
  break_free_blocks(3);
  lose_index();
  const CommandResult found = daemon.cli({"pool", "fsck"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_NE(found.out.find("is free but held"), std::string::npos) << found.out;
  EXPECT_NE(found.out.find("--repair"), std::string::npos) << found.out;
  const Json repaired =
      daemon.cli({"pool", "fsck", "--repair", "--privileged", "--format", "json"}).json();
  EXPECT_EQ(repaired["clean"], true) << repaired;
  EXPECT_EQ(repaired["repaired"]["retired"], 3);
  EXPECT_GT(repaired["repaired"]["hints_restored"].get<int>(), 0);
  EXPECT_EQ(repaired["retired"], 3);
  EXPECT_GT(generate()["cached_tokens"].get<int>(), 0) << "the other engine finds the prompt again";
  const CommandResult again = daemon.cli({"pool", "fsck", "--repair", "--quiescent"});
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("nothing to mend"), std::string::npos) << again.out;
}

TEST_F(RepairedDaemon, FsckAndRepairDoNotDisturbRequests) {
  const Json alone = generate();
  std::atomic<int> working{2};
  std::vector<std::thread> users;
  for (const std::uint32_t engine : {0u, 1u})
    users.emplace_back([&, engine] {
      Client client = daemon.connect(engine);
      for (int i = 0; i < 40; ++i) {
        GenerateRequest request;
        request.prompt = prompt + std::string(std::size_t(i % 7) * 30, 'b');
        request.max_tokens = 8;
        const auto done = client.generate(request, [](const Progress&) {});
        EXPECT_TRUE(done.has_value() && done->reason != Finish::error);
      }
      --working;
    });
  int looks = 0;
  while (working.load() != 0 || looks < 3) {
    const CommandResult found = daemon.cli({"pool", "fsck", "--privileged"});
    EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
    const CommandResult mended = daemon.cli({"pool", "fsck", "--repair", "--format", "json"});
    EXPECT_EQ(mended.exit_code, 0) << mended.out << mended.err;
    EXPECT_EQ(mended.json()["repaired"]["retired"], 0) << mended.out;
    ++looks;
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(generate()["token_ids"], alone["token_ids"]);
}

TEST_F(RepairedDaemon, FsckComparesTheSlotTableWithLiveProcesses) {
  memory.control().processes[20].pid.store(4711);
  const CommandResult found = daemon.cli({"pool", "fsck"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_NE(found.out.find("slot 20 is signed by pid 4711"), std::string::npos) << found.out;
  EXPECT_EQ(daemon.cli({"pool", "fsck", "--repair"}).exit_code, 0);
}

TEST_F(RepairedDaemon, ARepairWhoseStewardIsKilledCanBeRunAgain) {
  lose_index();
  const pid_t victim = steward();
  signal_process(victim, SIGSTOP);
  CommandResult first;
  std::thread asker([&] { first = daemon.cli({"pool", "fsck", "--repair"}); });
  EXPECT_TRUE(eventually([&] { return daemon.procs()["keeper"]["repairs"] == 1; }));
  signal_process(victim, SIGKILL);
  asker.join();
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_NE(first.err.find("run it again"), std::string::npos) << first.err;
  EXPECT_TRUE(eventually([&] { return daemon.cli({"pool", "fsck", "--repair"}).exit_code == 0; }));
  EXPECT_GT(generate()["cached_tokens"].get<int>(), 0);
}

/// Asks for a repair over this connection, and expects a refusal.
void expect_refused(const UniqueFd& socket) {
  ASSERT_TRUE(send_packet(socket.get(), RepairRequest{}).has_value());
  const auto answer = receive_answer(socket.get());
  ASSERT_TRUE(answer.has_value() && answer->has_value());
  EXPECT_TRUE((*answer)->is(MessageType::refused));
}

TEST_F(RepairedDaemon, AProcessThatHasNotSaidHelloMayNotAskForARepair) {
  auto socket = connect_to_daemon(daemon.socket());
  expect_refused(*socket);
}

TEST_F(RepairedDaemon, AClientMayNotAskForARepair) {
  auto socket = connect_to_daemon(daemon.socket());
  ASSERT_TRUE(say_hello(socket->get(), ClientHello{std::size_t{16} << 20}).has_value());
  expect_refused(*socket);
}

}  // namespace
}  // namespace kvhive::testing
