// kill -9 of the daemon's own processes costs nothing: streams, channels, requests of the control
// protocol and published blocks go on.

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "ipc/questions.hpp"
#include "ipc/text_memory.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

std::size_t published_blocks(const Daemon& daemon) {
  const Json device = daemon.stat()["tiers"]["device"];
  return device["idle"].get<std::size_t>() + device["held"].get<std::size_t>();
}

TEST(Succession, AKilledKeeperCostsNoStreamNoBlockAndNoConnection) {
  const Daemon daemon;
  const std::set<ino_t> objects = memory_objects_of(daemon.pid());  // before there is a channel
  const Progress undisturbed = *daemon.connect(1).generate(long_request());
  const Json before = daemon.status();
  Client client = daemon.connect(0);
  const RequestId number = *client.submit(long_request());
  Progress whole = read_until(client, number, 100);
  for (int kills = 0; kills < 5; ++kills) {
    daemon.kill_keeper();
    read_on(client, number, whole, 100);
    // A new client, too.
    EXPECT_EQ(daemon.connect().generate(long_request(8))->tokens.size(), 8u);
  }
  read_on(client, number, whole, 1u << 30);
  EXPECT_EQ(whole.reason, Finish::length) << whole.error.text;
  EXPECT_EQ(ids(whole), ids(undisturbed));
  const Json after = daemon.status();
  EXPECT_EQ(after["steward"], before["steward"]);
  for (const int i : {0, 1}) EXPECT_EQ(after["engines"][i]["pid"], before["engines"][i]["pid"]);
  EXPECT_NE(after["keeper"]["pid"], before["keeper"]["pid"]);
  EXPECT_EQ(after["keeper"]["front"], before["keeper"]["front"]);
  EXPECT_TRUE(daemon.fsck_is_clean());
  { const Client gone = std::move(client); }
  EXPECT_TRUE(eventually([&] { return daemon.status()["clients"].empty(); }, kHang));
  EXPECT_TRUE(eventually([&] { return memory_objects_of(daemon.pid()) == objects; }, kHang))
      << "a killed keeper has left memory";
}

TEST(Succession, AKilledFrontIsReplacedByTheKeeper) {
  TempDirectory directory;
  const std::string socket = directory.path() / "new/s";
  const pid_t front =
      spawn(program("kvhived"),
            {"--model", kDemoModel, "--socket", socket, "--engines", "2", "--threads", "1",
             "--kv-cache-memory-bytes", "32M", "--log-level", "error"},
            -1, -1);
  ASSERT_TRUE(eventually(
      [&] {
        return run("kvhive", {"pool", "stat", "--socket", socket}).exit_code == 0;
      },
      kHang));
  Client client = std::move(*Client::connect(client_options(socket)));
  const Progress undisturbed = *client.generate(long_request());
  const RequestId number = *client.submit(long_request());
  Progress whole = read_until(client, number, 100);
  pid_t now = front;
  for (int kills = 0; kills < 3; ++kills) {
    const pid_t keeper = keeper_of(now);
    ASSERT_NE(keeper, 0);
    signal_process(now, SIGKILL);
    if (now == front) waitpid(front, nullptr, 0);
    now = keeper;  // it takes the front's place, and starts a keeper
    ASSERT_TRUE(eventually([&] { return keeper_of(now) != 0; }, kHang)) << kills;
    read_on(client, number, whole, 100);
    auto next = Client::connect(client_options(socket));
    ASSERT_TRUE(next.has_value()) << next.error().text;
    EXPECT_EQ(next->generate(long_request(8))->tokens.size(), 8u);
    signal_process(keeper_of(now), SIGKILL);  // and the keeper a successor
    EXPECT_EQ(Client::connect(client_options(socket))->generate(long_request(8))->tokens.size(),
              8u);
  }
  read_on(client, number, whole, 1u << 30);
  EXPECT_EQ(whole.reason, Finish::length) << whole.error.text;
  EXPECT_EQ(ids(whole), ids(undisturbed));
  // Engines that end have another parent now.
  const Json status =
      run("kvhive", {"pool", "procs", "--socket", socket, "--format", "json"}).json();
  signal_process(status["engines"][0]["pid"], SIGKILL);
  EXPECT_TRUE(eventually(
      [&] {
        return run("kvhive", {"pool", "procs", "--socket", socket, "--format", "json"})
                   .json()["engines"][0]["restarts"] == 1;
      },
      kHang));
  EXPECT_EQ(run("kvhive", {"stop", "--socket", socket}).exit_code, 0);
  EXPECT_FALSE(is_alive(now));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Succession, StewardAndKeeperKilledAtOnceAreBothReplaced) {
  const Daemon daemon;
  Client client = daemon.connect(0);
  const RequestId number = *client.submit(long_request());
  read_until(client, number, 20);
  const Json before = daemon.status();
  const pid_t steward = before["steward"]["pid"], keeper = daemon.keeper();
  const pid_t engine = before["engines"][1]["pid"];
  for (const pid_t pid : {steward, keeper, engine}) signal_process(pid, SIGSTOP);
  for (const pid_t pid : {steward, keeper, engine}) signal_process(pid, SIGKILL);
  EXPECT_EQ(read_until(client, number, 1u << 30).reason, Finish::length);
  EXPECT_TRUE(eventually(
      [&] {
        const Json now = daemon.status();
        return now["engines"][1]["state"] == "serving" && now["engines"][1]["pid"] != engine;
      },
      kHang));
  EXPECT_TRUE(eventually(
      [&] {
        const Json status =
            daemon.status();  // a loop over a part of a temporary reads freed memory
        return std::ranges::none_of(status["slots"],
                                    [](const Json& slot) { return slot["use"] == "unswept"; });
      },
      kHang));
  EXPECT_NE(daemon.status()["steward"]["pid"], steward);
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
}

/// They are children of a process that was killed, so the keeper is not their parent.
TEST(Succession, HowProcessesEndIsToldAfterAKeepersDeath) {
  const TempDirectory directory;
  const std::string log = directory.path() / "log";
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--log-file", log,
                       "--log-level", "info"});
  const Json before = daemon.status();
  daemon.kill_keeper();
  std::string told;
  const auto tells = [&](const std::string& line) {
    return eventually(
        [&] {
          std::ifstream file(log);
          told.assign(std::istreambuf_iterator<char>(file), {});
          return told.find(line) != std::string::npos;
        },
        kHang);
  };
  const int signals[] = {SIGSEGV, SIGKILL};
  for (int i = 0; i < 2; ++i) {
    const pid_t engine = before["engines"][i]["pid"];
    signal_process(engine, signals[i]);
    ASSERT_TRUE(tells("engine " + std::to_string(i) + " (pid " + std::to_string(engine) +
                      ") ended: signal " + std::to_string(signals[i])))
        << told;
  }
}

/// What was asked while there was no keeper is answered by the next.
TEST(Succession, RequestsThatWaitInTheQueuesAreAnsweredByTheSuccessor) {
  const Daemon daemon;
  const UniqueFd asker = std::move(*connect_to_daemon(daemon.socket()));
  ASSERT_TRUE(say_hello(asker.get(), InspectorHello{layout_hash({}), 0}));
  const pid_t keeper = daemon.keeper();
  signal_process(keeper, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(keeper) == 'T'; }));
  const UniqueFd status = std::move(*connect_to_daemon(daemon.socket()));
  ASSERT_TRUE(send_packet(status.get(), StatusRequest{7}));
  ASSERT_TRUE(send_packet(asker.get(), RepairRequest{8}));
  const UniqueFd client = std::move(*connect_to_daemon(daemon.socket()));
  ASSERT_TRUE(send_packet(client.get(), ClientHello{kLeastChannelBytes}));
  signal_process(keeper, SIGKILL);
  const auto told = await_answer<Status>(status.get(), 7);
  EXPECT_TRUE(told.has_value()) << told.error().text;
  const auto repaired = await_answer<RepairDone>(asker.get(), 8);
  EXPECT_TRUE(repaired.has_value()) << repaired.error().text;
  const auto welcome = receive_answer(client.get());
  ASSERT_TRUE(welcome && *welcome && (*welcome)->is(MessageType::client_welcome));
}

TEST(Succession, AKeeperThatIsKilledAsItEndsHasASuccessorThatEnds) {
  for (int i = 0; i < 5; ++i) {
    Daemon daemon;
    const pid_t keeper = daemon.keeper();
    signal_process(keeper, SIGSTOP);
    ASSERT_TRUE(eventually([&] { return state_of(keeper) == 'T'; }));
    signal_process(daemon.pid(), SIGTERM);
    signal_process(keeper, SIGKILL);
    siginfo_t ended{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(daemon.pid()), &ended, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(ended.si_code, CLD_EXITED);
    EXPECT_EQ(ended.si_status, 0);
    EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
  }
}

TEST(Succession, AKeeperKilledBeforeThePoolIsMadeBeginsAnew) {
  TempDirectory directory;
  const std::string socket = directory.path() / "s";
  const pid_t front =
      spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket, "--threads", "1",
                                 "--kv-cache-memory-bytes", "8M", "--log-level", "off"});
  pid_t keeper = 0;
  ASSERT_TRUE(eventually([&] { return (keeper = keeper_of(front)) != 0; }));
  signal_process(keeper, SIGKILL);
  EXPECT_TRUE(eventually(
      [&] {
        auto client = Client::connect(client_options(socket));
        return client && client->generate(long_request(4))->tokens.size() == 4;
      },
      kHang));
  EXPECT_EQ(run("kvhive", {"stop", "--socket", socket}).exit_code, 0);
  waitpid(front, nullptr, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

/// Whatever kills them will kill the next one, too.
TEST(Succession, KeepersThatAreAllKilledBeforeTheyDoAnythingEndTheDaemon) {
  TempDirectory directory;
  const std::string socket = directory.path() / "new/s", log = directory.path() / "log";
  const pid_t front = spawn(program("kvhived"), {"--model", kDemoModel, "--socket", socket,
                                                 "--threads", "1", "--kv-cache-memory-bytes", "8M",
                                                 "--log-level", "error", "--log-file", log});
  ASSERT_TRUE(
      eventually([&] { return Client::connect(client_options(socket)).has_value(); }, kHang));
  std::set<pid_t> seen;
  EXPECT_TRUE(eventually(
      [&] {
        for (const pid_t process : processes_of(front)) seen.insert(process);
        if (const pid_t keeper = keeper_of(front); keeper != 0) signal_process(keeper, SIGKILL);
        return !is_alive(front);
      },
      kHang));
  int status = 0;
  waitpid(front, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  std::stringstream words;
  words << std::ifstream(log).rdbuf();
  EXPECT_THAT(words.str(), HasSubstr("none of which had done anything: giving up"));
  for (const pid_t process : seen) EXPECT_TRUE(eventually([&] { return !is_alive(process); }));
  EXPECT_FALSE(std::filesystem::exists(socket));
}

/// Streams over all engines, and a process killed again and again.
TEST(Succession, ManyStreamsAreCompleteWhileAnyProcessIsKilledAgainAndAgain) {
  const Daemon daemon({"--engines", "3", "--kv-cache-memory-bytes", "64M"});
  std::mt19937_64 random(chosen_seed());
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 24; ++i) {
    requests.push_back(request_of("In the beginning " + std::to_string(i), 600));
    requests.back().seed = static_cast<std::uint64_t>(i);
  }
  std::vector<Client> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(daemon.connect());
  const std::vector<Progress> undisturbed = generate_all(clients, requests);
  const std::size_t published = published_blocks(daemon);
  ASSERT_GT(daemon.stat()["tiers"]["device"]["free"], 0) << "nothing must be evicted here";
  std::atomic<bool> is_done{false};
  std::vector<Progress> results;
  std::thread streaming([&] {
    for (int round = 0; round < 2; ++round) {
      results = generate_all(clients, requests);
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].reason, Finish::length) << results[i].error.text;
        EXPECT_EQ(ids(results[i]), ids(undisturbed[i])) << i;
      }
    }
    is_done = true;
  });
  std::size_t kills = 0, of_keepers = 0;
  while (!is_done) {
    const Json status = daemon.status();
    const std::uint64_t who = random() % 4;
    const pid_t victim = who < 2    ? status["keeper"]["pid"].get<pid_t>()
                         : who == 2 ? status["steward"]["pid"].get<pid_t>()
                                    : status["engines"][random() % 3]["pid"].get<pid_t>();
    if (victim == 0) continue;
    of_keepers += who < 2 ? 1 : 0;
    ++kills;
    signal_process(victim, SIGKILL);
    // A new client each time: the next is killed when this one was served. A request whose engines
    // die four times without a token in between is refused, so an engine must get on before.
    auto client = Client::connect(client_options(daemon.socket(), kAnyEngine, kLeastChannelBytes));
    ASSERT_TRUE(client.has_value()) << client.error().text;
    if (who == 3) {
      EXPECT_TRUE(client->generate(long_request(64)).has_value());
    }
  }
  streaming.join();
  std::printf("%zu kills, %zu of them keepers\n", kills, of_keepers);
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
  EXPECT_GE(published_blocks(daemon), published) << "published blocks are lost";
}

}  // namespace
}  // namespace kvhive::testing
