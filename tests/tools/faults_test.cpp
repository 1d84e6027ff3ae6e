// Whole daemons whose processes die by a real SIGKILL or misbehave.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <fstream>
#include <random>

#include "client/connection.hpp"
#include "config/machine/machine_memory.hpp"
#include "ipc/channel/doorbell.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/other_programs.hpp"
#include "tests/tools/requests.hpp"

namespace kvhive::testing {
namespace {

/// \param keeper  0 = there is none
using ::testing::HasSubstr;

/// Starts a daemon that the test will end during its start.
pid_t start_bare_daemon(const std::filesystem::path& socket) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const std::string path = program("kvhived");
  execl(path.c_str(), path.c_str(), "--model", kDemoModel.c_str(), "--socket", socket.c_str(),
        "--kv-cache-memory-bytes", "8M", "--log-level", "off", nullptr);
  _exit(127);
}

TEST(Faults, AKilledEnginesRequestsGoOnTokenForToken) {
  const Daemon daemon;
  const Progress undisturbed = *daemon.connect(1).generate(long_request());

  Client client = daemon.connect(0);
  const RequestId number = *client.submit(long_request());
  Progress before = read_until(client, number, 300);
  ASSERT_EQ(before.reason, Finish::none);
  const pid_t dead = daemon.engine(0)["pid"];
  signal_process(dead, SIGKILL);
  const Progress after = read_until(client, number, 1u << 30);

  EXPECT_EQ(after.reason, Finish::length) << after.error.text;
  std::vector<TokenId> tokens = ids(before);
  for (const TokenId token : ids(after)) tokens.push_back(token);
  EXPECT_EQ(tokens, ids(undisturbed));
  EXPECT_EQ(before.text + after.text, undisturbed.text);
  EXPECT_NE(daemon.engine(0)["pid"], dead);
  EXPECT_TRUE(daemon.fsck_is_clean());
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
}

TEST(Faults, TotalsOfThePoolKeepWhatADeadEngineHasCounted) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M"});
  const Progress result = *daemon.connect().generate(long_request(40));
  const Json before = daemon.stat();
  EXPECT_EQ(before["prompt_tokens"], result.prompt_tokens);
  EXPECT_EQ(before["generated_tokens"], 40u) << "the last token is counted, too";
  const pid_t dead = daemon.engine(0)["pid"];
  signal_process(dead, SIGKILL);
  ASSERT_TRUE(eventually([&] {
    const Json engine = daemon.engine(0);
    return !engine.is_null() && engine["pid"] != dead;
  }));
  const Json after = daemon.stat();
  for (const char* name : {"prompt_tokens", "cached_tokens", "generated_tokens", "queried_blocks",
                           "hit_blocks", "allocated_blocks", "published_blocks"})
    EXPECT_EQ(after[name], before[name]) << name;
  EXPECT_EQ(daemon.engine(0)["prompt_tokens"], 0u)
      << "only the new process's tokens are counted here";
}

TEST(Faults, AFailoverDoesNotTellTheClientThatItsPromptWasCached) {
  const Daemon daemon;
  Client client = daemon.connect();
  const RequestId number = *client.submit(long_request());
  const Progress before = read_until(client, number, 100);
  const Json counted = daemon.stat();
  signal_process(daemon.engine(before.engine.value())["pid"].get<pid_t>(), SIGKILL);
  const Progress after = read_until(client, number, 1u << 30);
  EXPECT_EQ(after.reason, Finish::length) << after.error.text;
  EXPECT_EQ(after.cached_tokens, 0u);
  for (const char* name : {"prompt_tokens", "cached_tokens", "queried_blocks", "hit_blocks"})
    EXPECT_EQ(daemon.stat()[name], counted[name]) << name;
}

TEST(Faults, AnUnpinnedRequestMovesToTheOtherEngine) {
  const Daemon daemon;
  Client client = daemon.connect();
  const std::array<pid_t, 2> engines{daemon.pid_of(0), daemon.pid_of(1)};
  const RequestId number = *client.submit(long_request());
  const Progress before = read_until(client, number, 200);
  signal_process(engines.at(before.engine.value()), SIGKILL);
  const Progress after = read_until(client, number, 1u << 30);
  EXPECT_EQ(after.reason, Finish::length) << after.error.text;
  EXPECT_EQ(before.tokens.size() + after.tokens.size(), 1500u);
  EXPECT_NE(after.engine, before.engine);
}

TEST(Faults, AKilledEngineLeavesItsFinishedBlocksToTheOthers) {
  const Daemon daemon;
  Client client = daemon.connect(0);
  const RequestId number = *client.submit(long_request());
  const Progress before = read_until(client, number, 300);
  const pid_t dead = daemon.engine(0)["pid"];
  signal_process(dead, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] {
    const Json all = daemon.procs();
    return std::none_of(all["processes"].begin(), all["processes"].end(),
                        [&](const Json& p) { return p["pid"] == dead; });
  }));
  std::printf(
      "gone from pool procs after %.0f ms\n",
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  EXPECT_TRUE(daemon.fsck_is_clean());

  // The other engine continues the same text from the dead one's blocks.
  GenerateRequest same = long_request(8);
  same.prompt += before.text;
  const Progress hit = *daemon.connect(1).generate(same);
  EXPECT_GE(hit.cached_tokens, 16u);
  EXPECT_TRUE(eventually([&] { return !daemon.engine(0).is_null(); })) << "no replacement came";
  EXPECT_EQ(daemon.connect(0).generate(long_request(4))->tokens.size(), 4u);
}

TEST(Faults, AKilledStewardDisturbsNoRequest) {
  const Daemon daemon;
  Client client = daemon.connect(0);
  const RequestId number = *client.submit(long_request(800));
  read_until(client, number, 50);
  const Json before = daemon.status();
  const pid_t dead = before["steward"]["pid"], engine = before["engines"][1]["pid"];
  signal_process(dead, SIGKILL);
  signal_process(engine, SIGKILL);  // there is no steward: it is swept by the next one
  const Progress rest = read_until(client, number, 1u << 30);
  EXPECT_EQ(rest.reason, Finish::length);
  EXPECT_TRUE(eventually([&] { return daemon.procs()["steward"]["pid"] != dead; }));
  EXPECT_TRUE(eventually([&] {
    const Json now = daemon.status()["engines"][1];
    return now["pid"] != engine && now["state"] == "serving";
  }));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Faults, AKilledClientsRequestsEndAndItsBlocksReturn) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    Client client = daemon.connect(0);
    const RequestId number = *client.submit(long_request(3000));
    read_until(client, number, 20);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char letter;
  ASSERT_EQ(read(ready[0], &letter, 1), 1);
  EXPECT_EQ(daemon.running(0), 1u);
  signal_process(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(
      eventually([&] { return daemon.nothing_is_held() && daemon.engine(0)["running"] == 0; }));
  EXPECT_TRUE(eventually([&] { return daemon.procs()["clients"].empty(); }));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Faults, AnAbortedRequestEndsAtOnce) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  const RequestId number = *client.submit(long_request(3500));
  read_until(client, number, 10);
  client.abort(number);
  const Progress end = read_until(client, number, 1u << 30);
  EXPECT_EQ(end.reason, Finish::abort);
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
}

TEST(Faults, NoProcessAndNoFileOutlivesTheKeeper) {
  for (const bool is_killed : {false, true}) {
    Daemon daemon;
    const Json all = daemon.procs();
    std::vector<pid_t> pids = {all["steward"]["pid"].get<pid_t>()};
    for (const Json& engine : all["engines"]) pids.push_back(engine["pid"].get<pid_t>());
    Client client = daemon.connect();
    const RequestId number = *client.submit(long_request(3500));
    read_until(client, number, 10);
    if (is_killed)
      daemon.kill();
    else
      daemon.stop();
    for (const pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << pid;
    EXPECT_TRUE(eventually([&] { return !client.wait(std::chrono::milliseconds(0)).has_value(); }))
        << "the client was not told";
    EXPECT_TRUE(eventually([&] { return std::filesystem::is_empty(daemon.directory()); }));
  }
}

TEST(Faults, AClientThatWritesGarbageHurtsOnlyItself) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    auto vandal =
        Connection::open(daemon.socket(), kAnyEngine, kDefaultChannelBytes, "", "", kAnswerMs);
    ASSERT_TRUE(vandal.has_value());
    const std::uint32_t slot =
        *vandal->channel.submit(channel_request_of(long_request().prompt, 2000));
    ASSERT_TRUE(eventually([&] { return !vandal->channel.read(slot).tokens.empty(); }))
        << "the engine reads this channel";
    const std::span<std::byte> raw = vandal->channel.raw_requests();
    for (int i = 0; i < 2000; ++i) {
      std::memset(raw.data() + random() % (prompts_offset() - 8), static_cast<int>(random()),
                  random() % 8);
      if (i % 50 == 0) vandal->channel.abort(slot);  // rings the engine's doorbell, too
    }
  }
  EXPECT_EQ(daemon.connect().generate(long_request(32))->tokens.size(), 32u);
  EXPECT_EQ(daemon.procs()["engines"][0]["restarts"], 0);
  EXPECT_GT(daemon.stat()["refused_requests"], 0) << "no garbage was read";
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Faults, GarbageOnTheSocketIsDropped) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const UniqueFd socket = std::move(*connect_to_daemon(daemon.socket()));
    struct {
      PacketHeader header;
      EngineHello hello;
    } packet;
    auto* bytes = reinterpret_cast<unsigned char*>(&packet);
    const std::size_t from = round % 2 == 0 ? 0 : 8;  // with and without a good magic and version
    for (std::size_t i = from; i < sizeof packet; ++i)
      bytes[i] = static_cast<unsigned char>(random());
    if (round % 3 == 0) {  // a hello that the keeper reads, followed by a tail
      packet.header.type = MessageType(1 + round / 3 % 4);
      packet.header.payload_bytes =
          static_cast<std::uint32_t>(payload_bytes(packet.header.type).value());
    }
    send(socket.get(), &packet, round % 5 == 0 ? random() % sizeof packet : sizeof packet,
         MSG_NOSIGNAL);
  }
  EXPECT_EQ(daemon.connect().generate(long_request(4))->tokens.size(), 4u);
  EXPECT_EQ(daemon.procs()["engines"][0]["restarts"], 0);
}

/// The client fills what it shares with its engine and makes it blocking.
TEST(Faults, AClientThatSpoilsItsBellsDoesNotBlockItsEngine) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const UniqueFd socket = std::move(*connect_to_daemon(daemon.socket()));
  auto welcome = std::move(*say_hello(socket.get(), ClientHello{kLeastChannelBytes}));
  const int engine_bell = welcome.fds.at(2).get(), client_bell = welcome.fds.at(3).get();
  for (const int bell : {engine_bell, client_bell})
    fcntl(bell, F_SETFL, fcntl(bell, F_GETFL) & ~O_NONBLOCK);
  const std::uint64_t full = ~std::uint64_t{0} - 1;
  ASSERT_EQ(write(engine_bell, &full, sizeof full), ssize_t{sizeof full});
  EXPECT_EQ(send(client_bell, "x", 1, MSG_NOSIGNAL), -1) << "the client's end cannot send";
  EXPECT_EQ(errno, EPIPE);
  std::uint64_t count = 0;
  ASSERT_EQ(read(engine_bell, &count, sizeof count), ssize_t{sizeof count});
  auto channel = ClientChannel::open(std::move(welcome.fds[0]), welcome.fds[1],
                                     welcome.message.channel_bytes, std::move(welcome.fds[2]));
  ASSERT_TRUE(channel && send_packet(socket.get(), RequestsSealed{}));
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(channel->submit(channel_request_of(long_request().prompt, 40))
                    .has_value());  // and never reads its bell
  EXPECT_EQ(daemon.connect().generate(long_request(32))->tokens.size(), 32u);
  shutdown(client_bell, SHUT_RDWR);
  EXPECT_EQ(daemon.connect().generate(long_request(32))->tokens.size(), 32u);
}

/// A client that rings without end is listened to less often, and loses no ring.
TEST(Faults, AClientThatRingsWithoutEndIsServedAndSoAreOthers) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const UniqueFd socket = std::move(*connect_to_daemon(daemon.socket()));
  auto welcome = std::move(*say_hello(socket.get(), ClientHello{kLeastChannelBytes}));
  const UniqueFd bell{dup(welcome.fds.at(1).get())};
  auto channel = ClientChannel::open(std::move(welcome.fds[0]), welcome.fds[1],
                                     welcome.message.channel_bytes, std::move(welcome.fds[2]));
  ASSERT_TRUE(channel && send_packet(socket.get(), RequestsSealed{}));
  const ChildProcess ringing([&] {
    while (true) ring_engine(bell.get());
  });
  EXPECT_EQ(daemon.connect().generate(long_request(32))->tokens.size(), 32u);
  const std::uint32_t slot = channel->submit(channel_request_of(long_request().prompt, 8)).value();
  EXPECT_TRUE(eventually([&] { return channel->read(slot).reason != FinishReason::none; }));
}

TEST(Faults, AStewardThatIsStoppedIsReplacedAndItsSweepIsDone) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  signal_process(daemon.status()["steward"]["pid"], SIGSTOP);
  signal_process(daemon.status()["engines"][0]["pid"], SIGKILL);
  const auto unswept = [&] {
    return daemon.cli({"pool", "fsck", "--format", "json"}).json()["unswept_slots"];
  };
  EXPECT_TRUE(eventually([&] { return unswept() == 1; }));
  EXPECT_THAT(daemon.cli({"pool", "procs"}).out, HasSubstr("waits for the steward"));
  EXPECT_THAT(daemon.cli({"pool", "fsck"}).out, HasSubstr("1 slots of ended processes wait"));
  EXPECT_TRUE(eventually([&] { return unswept() == 0; }, std::chrono::seconds(60)));
  EXPECT_EQ(daemon.status()["steward"]["restarts"], 1);
  EXPECT_EQ(daemon.connect().generate(long_request(4))->tokens.size(), 4u);
}

TEST(Faults, ClientsThatComeAndGoWhileTheirEngineIsStoppedDoNotHarmIt) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  for (int i = 0; i < 600; ++i)  // far more messages than fit into a socket's queue
    (void)daemon.connect(0, kLeastChannelBytes);
  EXPECT_TRUE(eventually([&] { return daemon.status()["clients"].empty(); }));
  signal_process(pid, SIGCONT);
  EXPECT_EQ(daemon.connect(0).generate(long_request(4))->tokens.size(), 4u);
  EXPECT_TRUE(eventually([&] { return !has_memory_object(pid, "requests"); }));
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
}

TEST(Faults, ClientsThatComeWhileTheirEngineIsStoppedAreServedAfterwards) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  std::vector<Client> clients;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 250; ++i) {  // more than fit into a socket's queue
    clients.push_back(daemon.connect(0, kLeastChannelBytes));
    numbers.push_back(*clients.back().submit(long_request(2)));
  }
  signal_process(pid, SIGCONT);
  for (std::size_t i = 0; i < clients.size(); ++i)
    ASSERT_EQ(read_until(clients[i], numbers[i], 2).tokens.size(), 2u) << i;
}

TEST(Faults, NewClientsGetAnotherEngineWhileOneIsStopped) {
  const Daemon daemon;
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  Client first = daemon.connect(), second = daemon.connect();  // one of them got the stopped engine
  EXPECT_TRUE(
      eventually([&] { return daemon.status()["engines"][0]["state"] == "not answering"; }));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(daemon.connect().generate(request_of("In the beginning", 4))->tokens.size(), 4u);
  signal_process(pid, SIGCONT);
  for (Client* client : {&first, &second})
    EXPECT_EQ(client->generate(request_of("In the beginning", 4))->tokens.size(), 4u);
  EXPECT_TRUE(eventually([&] { return daemon.status()["engines"][0]["state"] == "serving"; }));
}

/// While engine 1 is awaited, engine 0 stays silent for a second and more: it is named once all the
/// same.
TEST(Faults, TheLogNamesASilentEngineOnceAndSaysWhenItAnswersAgain) {
  const TempDirectory directory;
  const std::string log = directory.path() / "log";
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--log-level", "info",
                       "--log-file", log});
  std::vector<pid_t> pids;
  std::vector<std::string> names;
  for (const std::uint32_t i : {0u, 1u}) {
    pids.push_back(daemon.engine(i)["pid"]);
    names.push_back("engine " + std::to_string(i) + " (pid " + std::to_string(pids[i]) + ") ");
  }
  const auto lines = [&](const std::string& words) {
    std::ifstream file(log);
    int count = 0;
    for (std::string line; std::getline(file, line);)
      count += line.find(words) != std::string::npos ? 1 : 0;
    return count;
  };
  std::vector<Client> clients;
  for (const std::uint32_t i : {0u, 1u}) {
    signal_process(pids[i], SIGSTOP);
    clients.push_back(daemon.connect(i));
    ASSERT_TRUE(eventually([&] { return lines(names[i] + "does not answer") != 0; }));
  }
  EXPECT_EQ(
      lines(names[0] + "does not answer: it is stopped (kill -CONT it) or hangs; others serve "
                       "the clients, except those that asked for this engine"),
      1);
  EXPECT_EQ(lines(names[1] + "does not answer: it is stopped (kill -CONT it) or hangs; no other "
                             "engine takes requests, so they wait"),
            1);
  for (const std::uint32_t i : {0u, 1u}) {
    signal_process(pids[i], SIGCONT);
    EXPECT_TRUE(eventually([&] { return lines(names[i] + "answers again") == 1; }));
    EXPECT_EQ(lines(names[i] + "does not answer"), 1);
    EXPECT_EQ(clients[i].generate(long_request(4))->tokens.size(), 4u);
  }
}

TEST(Faults, AStoppedEngineDoesNotOutliveTheKeeper) {
  Daemon daemon;
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  daemon.kill();
  EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

TEST(Faults, AStopSignalDuringTheStartLeavesNothing) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name);
  for (int i = 0; i < 6; ++i) {
    const pid_t pid = start_bare_daemon(directory / "new/s");
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory / "new/s"); }));
    for (int spin = 0; spin < i; ++spin) is_alive(pid);  // a little later each time
    signal_process(pid, SIGTERM);
    waitpid(pid, nullptr, 0);
    EXPECT_TRUE(std::filesystem::is_empty(directory)) << i;
  }
  std::filesystem::remove_all(directory);
}

/// The child that reads the model may take minutes. A stopping daemon does not wait for it.
/// \param stop  given the daemon's process and socket
void expect_to_end_while_the_model_is_read(
    const std::function<void(pid_t, const std::string&)>& stop) {
  const TempDirectory programs, sockets;
  const std::string socket = sockets.path() / "new/s";
  copy_programs(programs.path());
  const std::filesystem::path engine = programs.path() / "kvhive-engine";
  std::filesystem::remove(engine);
  std::ofstream(engine) << "#!/bin/sh\nexec sleep 1000\n";
  std::filesystem::permissions(engine, std::filesystem::perms::owner_all);
  const pid_t pid = spawn(programs.path() / "kvhived",
                          {"--model", kDemoModel, "--socket", socket, "--log-level", "error"});
  // The keeper, the child that reads the model, and the steward.
  ASSERT_TRUE(eventually([&] { return processes_of(pid).size() == 3; }));
  const std::vector<pid_t> children = processes_of(pid);
  stop(pid, socket);
  int status = -1;
  const bool has_ended = eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; });
  EXPECT_TRUE(has_ended);
  if (!has_ended) return kill_daemon(pid);
  EXPECT_EQ(status, 0);  // the exit code of every stop
  for (const pid_t child : children)
    EXPECT_TRUE(eventually([&] { return !is_alive(child); })) << child;
  EXPECT_TRUE(std::filesystem::is_empty(sockets.path()));
}

TEST(Faults, AStopSignalWhileTheModelIsReadEndsTheDaemonAtOnce) {
  expect_to_end_while_the_model_is_read(
      [](pid_t daemon, const std::string&) { signal_process(daemon, SIGTERM); });
}

/// Although the keeper does not answer yet.
TEST(Faults, AStopCommandWhileTheModelIsReadEndsTheDaemonAtOnce) {
  expect_to_end_while_the_model_is_read([](pid_t daemon, const std::string& socket) {
    const CommandResult stopped = run("kvhive", {"stop", "--socket", socket});
    EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
    EXPECT_THAT(stopped.out, HasSubstr("pid " + std::to_string(daemon)));
  });
}

/// The kernel clears hundreds of GiB in minutes. A stopping daemon does not wait for it. Here it
/// clears 4; should the signal come too late, by chance, it comes in time in another attempt.
TEST(Faults, AStopSignalWhileMemoryIsTakenEndsTheDaemonAtOnce) {
  bool was_heard = false;
  for (int attempt = 0; attempt < 5 && !was_heard; ++attempt) {
    if (machine_memory().available < std::size_t{8} << 30) GTEST_SKIP() << "too little memory";
    const TempDirectory sockets;
    const auto log = sockets.path() / "log";
    const pid_t pid =
        spawn(program("kvhived"), {"--model", kDemoModel, "--socket", sockets.path() / "s",
                                   "--kv-cache-memory-bytes", "4G", "--log-file", log});
    EXPECT_TRUE(
        eventually([&] { return sockets.read("log").find("taking 4") != std::string::npos; }));
    signal_process(pid, SIGTERM);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(std::filesystem::exists(sockets.path() / "s"));
    was_heard = sockets.read("log").find("device and") == std::string::npos;
  }
  EXPECT_TRUE(was_heard);
}

TEST(Faults, AKillDuringTheStartLeavesNothing) {
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name);
  const std::filesystem::path socket = directory / "new/s";
  const auto is_gone = [&] { return std::filesystem::is_empty(directory); };
  const auto serves = [&] {
    return run("kvhive", {"pool", "stat", "--socket", socket}).exit_code == 0;
  };
  int late = 0;
  for (int i = 0; i < 6; ++i) {
    const pid_t pid = start_bare_daemon(socket);
    ASSERT_TRUE(eventually([&] { return has_a_child(keeper_of(pid)); }));
    ASSERT_TRUE(std::filesystem::exists(socket));
    for (int spin = 0; spin < i; ++spin) (void)children_of(pid);  // a little later each time
    signal_process(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    // On a busy machine the start may have ended before the kill: then the daemon outlives it.
    ASSERT_TRUE(eventually([&] { return is_gone() || serves(); })) << i;
    if (is_gone()) continue;
    ++late;
    EXPECT_EQ(run("kvhive", {"stop", "--socket", socket}).exit_code, 0) << i;
    ASSERT_TRUE(eventually(is_gone)) << i;
  }
  EXPECT_LT(late, 6) << "no kill was in time";
  std::filesystem::remove_all(directory);
}

TEST(Faults, ARemovedSocketIsNamedAndItsDaemonCanBeEnded) {
  const Daemon daemon;
  ASSERT_TRUE(std::filesystem::remove(daemon.socket()));
  const CommandResult refused = daemon.cli({"stop"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("was removed"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("kill " + std::to_string(daemon.pid())), std::string::npos)
      << refused.err;
}

// The path may lead to another daemon after a daemon's own socket was removed.
TEST(Faults, AnEngineJoinsNoOtherDaemonThanItsOwn) {
  const Daemon daemon;
  const CommandResult refused =
      run("kvhive-engine", {"--model", kDemoModel, "--socket", daemon.socket(), "--keeper", "1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("another daemon (process " + std::to_string(daemon.pid()) + ")"),
            std::string::npos)
      << refused.err;
}

TEST(Faults, AnEngineOutOfDescriptorsRefusesTheChannelAndGoesOn) {
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  Client early = daemon.connect(0);
  EXPECT_EQ(early.generate(long_request(4))->tokens.size(), 4u);
  const pid_t pid = daemon.engine(0)["pid"];
  rlimit before{};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &none, nullptr), 0);
  // If the refusal comes before the client has checked its channel, connect() reports it.
  auto late = Client::connect({.socket = daemon.socket(), .engine = 0});
  const auto refused = late ? late->generate(long_request(4)) : Result<Progress>(late.error());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::os_error);
  EXPECT_NE(refused.error().text.find("engine 0 has no file descriptor left"), std::string::npos)
      << refused.error().text;
  EXPECT_EQ(early.generate(long_request(32))->tokens.size(), 32u);

  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(daemon.connect(0).generate(long_request(4))->tokens.size(), 4u);
  EXPECT_EQ(daemon.procs()["engines"][0]["restarts"], 0);
}

TEST(Faults, AStoppedEngineStopsNoOtherEngine) {
  const Daemon daemon;
  Client stopped = daemon.connect(0);
  const RequestId number = *stopped.submit(long_request(2500));
  read_until(stopped, number, 20);
  const pid_t pid = daemon.engine(0)["pid"];
  signal_process(pid, SIGSTOP);
  EXPECT_EQ(daemon.connect(1).generate(long_request(200))->tokens.size(), 200u);
  EXPECT_TRUE(daemon.fsck_is_clean());
  EXPECT_EQ(daemon.engine(0)["pid"], pid) << "a stopped process is alive";
  signal_process(pid, SIGCONT);
  EXPECT_EQ(read_until(stopped, number, 1u << 30).reason, Finish::length);
}

}  // namespace
}  // namespace kvhive::testing
