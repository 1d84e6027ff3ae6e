// What operators order of a running daemon: kvhive engine, kvhive reload, kvhived --take-over. Its
// streams go on meanwhile.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "ipc/questions.hpp"
#include "tests/support/playing_user.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"
#include "tests/tools/other_programs.hpp"
#include "tests/tools/requests.hpp"
#include "tests/tools/stopped_engine.hpp"
#include "tools/keeper/succession/ledger.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::set<std::uint32_t> engines_of(const std::vector<Progress>& results) {
  std::set<std::uint32_t> engines;
  for (const Progress& result : results) engines.insert(result.engine.value());
  return engines;
}

/// Streams that never end while an order is carried out, each compared with what it should be.
class Streaming {
 public:
  explicit Streaming(const Daemon& daemon) : asked_(short_requests(12, 80)) {
    clients_.push_back(daemon.connect());
    for (const Progress& result : generate_all(clients_, asked_)) right_.push_back(ids(result));
    thread_ = std::thread([this] {
      while (!is_over_) {
        const auto results = generate_all(clients_, asked_);
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].reason, Finish::length) << results[i].error.text;
          EXPECT_EQ(ids(results[i]), right_[i]) << i;
        }
        ++rounds_;
      }
    });
  }
  /// A round that begins from now on has ended.
  void wait_for_a_round() const {
    const int now = rounds_;
    EXPECT_TRUE(eventually([&] { return rounds_ > now + 1; }, kHang));
  }
  ~Streaming() {
    is_over_ = true;
    thread_.join();
  }

 private:
  std::vector<GenerateRequest> asked_;
  std::vector<std::vector<TokenId>> right_;
  std::vector<Client> clients_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

Json own_engine(const Daemon& daemon, std::uint32_t number) {
  const Json status = daemon.status();
  for (const Json& engine : status["engines"])
    if (engine["engine"] == number) return engine;
  return {};
}

TEST(Orders, ADrainedEngineEndsWhatItHasAndTakesNoMore) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M", "--max-num-seqs", "2"});
  const Streaming streaming(daemon);
  const auto drained = daemon.cli({"engine", "drain", "0"});
  EXPECT_EQ(drained.exit_code, 0) << drained.err;
  EXPECT_THAT(drained.out, HasSubstr("engine 0 (pid "));
  EXPECT_EQ(own_engine(daemon, 0)["state"], "drained");
  EXPECT_EQ(daemon.engine(0)["running"], 0);
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  EXPECT_EQ(engines_of(generate_all(clients, short_requests(12, 20))), std::set{1u});
  // An engine that dies drained comes again drained.
  const pid_t before = own_engine(daemon, 0)["pid"];
  signal_process(before, SIGKILL);
  EXPECT_TRUE(eventually(
      [&] {
        const Json engine = own_engine(daemon, 0);
        return engine["state"] == "drained" && engine["pid"] != before;
      },
      kHang));
  EXPECT_EQ(daemon.cli({"engine", "restart", "0"}).exit_code, 0);
  EXPECT_EQ(own_engine(daemon, 0)["state"], "serving");
  EXPECT_TRUE(eventually(
      [&] { return engines_of(generate_all(clients, short_requests(12, 20))).size() == 2; },
      kHang));
}

TEST(Orders, EnginesAreRestartedOneByOneUnderLoad) {
  const Daemon daemon({"--engines", "3", "--kv-cache-memory-bytes", "32M"});
  const Streaming streaming(daemon);
  const Json before = daemon.status()["engines"];
  for (const char* flag : {"--timeout=60", "--now"}) {
    const auto done = daemon.cli({"engine", "restart", "all", flag});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    streaming.wait_for_a_round();
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_NE(own_engine(daemon, i)["pid"], before[i]["pid"]);
    EXPECT_EQ(own_engine(daemon, i)["restarts"], 2);
  }
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
}

TEST(Orders, EnginesAreAddedAndRemovedUnderLoad) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M"});
  const Streaming streaming(daemon);
  const auto added = daemon.cli({"engine", "add"});
  EXPECT_EQ(added.exit_code, 0) << added.err;
  EXPECT_THAT(added.out, HasSubstr("engine 1 (pid "));
  std::vector<Client> clients;
  clients.push_back(daemon.connect());
  EXPECT_TRUE(eventually(
      [&] { return engines_of(generate_all(clients, short_requests(12, 20))).size() == 2; },
      kHang));
  EXPECT_EQ(daemon.cli({"engine", "remove", "0"}).exit_code, 0);
  EXPECT_TRUE(own_engine(daemon, 0).is_null());
  EXPECT_EQ(engines_of(generate_all(clients, short_requests(12, 20))), std::set{1u});
  const auto last = daemon.cli({"engine", "remove", "1"});
  EXPECT_EQ(last.exit_code, 1);
  EXPECT_THAT(last.err, HasSubstr("engine 1 is the last"));
  const auto gone = daemon.cli({"engine", "drain", "0"});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.err, HasSubstr("engine 0 does not exist; there are 1"));
  daemon.kill_keeper();  // its successor knows which there are
  EXPECT_TRUE(own_engine(daemon, 0).is_null());
  EXPECT_EQ(daemon.cli({"engine", "add"}).exit_code, 0);  // the free number again
  EXPECT_EQ(own_engine(daemon, 0)["state"], "serving");
  EXPECT_EQ(own_engine(daemon, 0)["restarts"], 0) << "it is another engine";
  EXPECT_EQ(daemon.cli({"engine", "restart", "0"}).exit_code, 0);
  EXPECT_EQ(own_engine(daemon, 0)["restarts"], 1);
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
}

TEST(Orders, OnlyARestartTakesAll) {
  const Daemon daemon;
  const Json before = daemon.status()["engines"];
  for (const char* verb : {"drain", "remove"}) {
    const auto refused = daemon.cli({"engine", verb, "all"});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(refused.out, "") << "nothing has happened";
    EXPECT_THAT(refused.err, HasSubstr("'all' is no number, and only restart takes all"));
  }
  EXPECT_EQ(daemon.status()["engines"], before);
}

TEST(Orders, AClientThatWantsARemovedEngineIsTold) {
  const Daemon daemon;
  Client client = daemon.connect(1);
  ASSERT_TRUE(client.generate(request_of("And", 4)).has_value());
  EXPECT_EQ(daemon.cli({"engine", "remove", "1"}).exit_code, 0);
  EXPECT_FALSE(client.generate(request_of("And", 4)).has_value());
  const auto refused = Client::connect(client_options(daemon.socket(), 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text, HasSubstr("engine 1 does not exist"));
}

TEST(Orders, AStoppedEngineIsReplacedAtOnceIfTheOperatorDoesNotWait) {
  const Daemon daemon;
  const pid_t stopped = own_engine(daemon, 0)["pid"];
  signal_process(stopped, SIGSTOP);
  const auto late = daemon.cli({"engine", "restart", "0", "--timeout", "1"});
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_THAT(late.err, HasSubstr("the order stays"));
  EXPECT_THAT(late.err, Not(HasSubstr("not told yet")));
  const auto all = daemon.cli({"engine", "restart", "all", "--timeout", "1"});
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.err, HasSubstr("; not told yet: engine 1"));
  const auto done = daemon.cli({"engine", "restart", "0", "--now"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(own_engine(daemon, 0)["pid"], stopped);
}

TEST(Orders, AnEngineThatCannotStartIsNamed) {
  const TempDirectory directory;
  const std::string model = directory.path() / "model";
  std::filesystem::copy(kDemoModel, model);
  const Daemon daemon({"--model", model, "--engines", "1", "--kv-cache-memory-bytes", "32M"});
  std::filesystem::rename(model + "/model.safetensors", model + "/moved");
  const auto is_down = [&](std::uint32_t engine) {
    return eventually([&] { return own_engine(daemon, engine)["state"] == "down"; }, kHang);
  };
  const auto added = daemon.cli({"engine", "add", "--timeout", "1"});
  EXPECT_EQ(added.exit_code, 1);
  EXPECT_THAT(added.err, HasSubstr("the order stays"));
  EXPECT_THAT(added.err, Not(HasSubstr("kill -CONT")));
  // Each start follows later than the one before, so it is seen down in the end.
  std::string told;
  EXPECT_TRUE(eventually(
      [&] {
        if (!is_down(1)) return false;
        told = daemon.cli({"engine", "restart", "1", "--now", "--timeout", "1"}).err;
        return told.find("engine 1 is down: it ends as it starts") != std::string::npos;
      },
      kHang))
      << told;
  EXPECT_THAT(told, Not(HasSubstr("does not wait")));
  std::filesystem::rename(model + "/moved", model + "/model.safetensors");
  EXPECT_TRUE(eventually([&] { return own_engine(daemon, 1)["state"] == "serving"; }, kHang));
}

TEST(Orders, TheLastThatTakesRequestsIsNotRemoved) {
  const Daemon daemon;
  EXPECT_EQ(daemon.cli({"engine", "drain", "0"}).exit_code, 0);
  for (const char* flag : {"--timeout=60", "--now"}) {
    const auto refused = daemon.cli({"engine", "remove", "1", flag});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, HasSubstr("that takes requests: the others are drained"));
  }
  EXPECT_EQ(daemon.cli({"engine", "remove", "0"}).exit_code, 0);
}

/// The keeper is killed before it reads the order, and again while the engine drains.
TEST(Orders, AKilledKeepersSuccessorCarriesThemOut) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect(0);
  const RequestId number = *client.submit(request_of("And it came to pass", 1500));
  ASSERT_TRUE(eventually([&] { return daemon.running(0) == 1; }, kHang));
  std::optional<StoppedEngine> drains_long(std::in_place, daemon, 0);
  const UniqueFd asker = std::move(*connect_to_daemon(daemon.socket()));
  ASSERT_TRUE(say_hello(asker.get(), InspectorHello{layout_hash({}), 0}));
  const pid_t keeper = daemon.keeper();
  signal_process(keeper, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(keeper) == 'T'; }));
  ASSERT_TRUE(send_packet(asker.get(), Order{7, Order::What::restart, 0, 0, 0}));
  signal_process(keeper, SIGKILL);
  ASSERT_TRUE(eventually([&] { return own_engine(daemon, 0)["state"] == "draining"; }, kHang));
  daemon.kill_keeper();
  drains_long.reset();
  auto done = receive_answer(asker.get(), 60'000);
  while (done && *done && (*done)->is(MessageType::inspector_welcome))  // a successor may repeat it
    done = receive_answer(asker.get(), 60'000);
  ASSERT_TRUE(done && *done && (*done)->is(MessageType::done));
  EXPECT_EQ((*done)->as<Done>()->ticket, 7u);
  EXPECT_EQ(own_engine(daemon, 0)["restarts"], 1);
  EXPECT_EQ(own_engine(daemon, 0)["state"], "serving");
  EXPECT_EQ(client.read(number)->tokens.size(), 1500u) << "it was drained, so it was waited for";
}

/// A client that asks for it waits meanwhile.
TEST(Orders, AnEngineThatDoesNotRunIsRemovedAndItsClientsAreTold) {
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect(1);
  ASSERT_TRUE(client.generate(request_of("And", 4)).has_value());
  // Each start follows later than the one before.
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(eventually([&] { return own_engine(daemon, 1)["pid"] != 0; }, kHang));
    signal_process(own_engine(daemon, 1)["pid"], SIGKILL);
    ASSERT_TRUE(eventually([&] { return own_engine(daemon, 1)["pid"] == 0; }, kHang));
  }
  ASSERT_TRUE(client.submit(request_of("And", 4)).has_value());
  const auto removed = daemon.cli({"engine", "remove", "1"});
  EXPECT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_TRUE(
      eventually([&] { return !client.wait(std::chrono::milliseconds(10)).has_value(); }, kHang));
}

/// What was ordered before goes on.
TEST(Orders, AnOrderAtOnceThatIsRefusedOvertakesNothing) {
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M"});
  Client client = daemon.connect();
  const RequestId number = *client.submit(request_of("And", 1500));
  ASSERT_TRUE(eventually([&] { return daemon.running(0) == 1; }, kHang));
  const pid_t before = daemon.pid_of(0);
  std::optional<StoppedEngine> drains_long(std::in_place, daemon, 0);
  const pid_t restart =
      spawn(program("kvhive"), {"engine", "restart", "0", "--socket", daemon.socket()});
  ASSERT_TRUE(eventually([&] { return own_engine(daemon, 0)["state"] == "draining"; }, kHang));
  const auto refused = daemon.cli({"engine", "remove", "0", "--now"});
  EXPECT_THAT(refused.err, HasSubstr("is the last"));
  client.abort(number);
  drains_long.reset();
  int status = 1;
  waitpid(restart, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(own_engine(daemon, 0)["pid"], before);
  EXPECT_EQ(daemon.connect().generate(request_of("And", 4))->tokens.size(), 4u);
}

TEST(Orders, StrangeOrdersAreRefused) {
  const Daemon daemon;
  for (const std::uint32_t what : {0u, 5u, 6u, 1234u}) {
    const UniqueFd asker = std::move(*connect_to_daemon(daemon.socket()));
    ASSERT_TRUE(say_hello(asker.get(), InspectorHello{layout_hash({}), 0}));
    const auto answer =
        ask_keeper<Done>(asker.get(), Order{1, Order::What(what), 99, 0, kLedgerVersion}, "[");
    ASSERT_FALSE(answer.has_value());
  }
  const auto unknown = daemon.cli({"engine", "drain", "9"});
  EXPECT_THAT(unknown.err, HasSubstr("engine 9 does not exist; there are 0, 1"));
  EXPECT_THAT(daemon.cli({"engine", "drain", "x"}).err, HasSubstr("'x' is no number"));
}

// -- reload ---------------------------------------------------------------------------------------

class Reload : public ::testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(file()) << text; }
  std::string file() const { return directory_.path() / "kvhive.toml"; }

 private:
  TempDirectory directory_;
};

TEST_F(Reload, WhatMayChangeChangesForAllThatRuns) {
  write("max-queued-tokens = 100000\n");
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M", "--config", file()});
  Client client = daemon.connect();
  ASSERT_TRUE(client.generate(request_of("And", 4)).has_value());
  EXPECT_EQ(daemon.cli({"reload"}).out, "nothing has changed\n");
  write("max-queued-tokens = 16\nchannel-bytes-per-domain = \"64M\"\n");
  const auto reloaded = daemon.cli({"reload"});
  EXPECT_EQ(reloaded.exit_code, 0) << reloaded.err;
  EXPECT_THAT(reloaded.out, HasSubstr("max-queued-tokens = 16"));
  const auto is_refused = [&] {
    std::vector<RequestId> open;
    for (int i = 0; i < 200; ++i) open.push_back(*client.submit(request_of(passage(0, 200), 2)));
    bool was = false;
    for (const RequestId id : open) {
      Progress news;
      while ((news = *client.read(id)).reason == Finish::none) EXPECT_TRUE(client.wait());
      was |= news.reason == Finish::error && news.error.code == ErrorCode::overloaded;
    }
    return was;
  };
  EXPECT_TRUE(is_refused());
  EXPECT_FALSE(Client::connect(client_options(daemon.socket(), kAnyEngine, 80u << 20)).has_value());
  daemon.kill_keeper();  // its successor, and engines that it starts, have the new options
  signal_process(own_engine(daemon, 0)["pid"], SIGKILL);
  EXPECT_TRUE(eventually([&] { return own_engine(daemon, 0)["restarts"] == 1; }, kHang));
  EXPECT_TRUE(is_refused());
  EXPECT_FALSE(Client::connect(client_options(daemon.socket(), kAnyEngine, 80u << 20)).has_value());
  EXPECT_EQ(daemon.cli({"reload"}).out, "nothing has changed\n");
}

TEST_F(Reload, DomainsChangeForWhoConnectsFromThenOn) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: needs root, to be other users";
  write("sharing = \"listed\"\n[domains]\nteam = [\"root\", 60001]\n");
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M", "--socket-access",
                       "everybody", "--config", file()});
  ASSERT_EQ(chmod(daemon.directory().c_str(), 0711), 0);
  const auto connect_as = [&](uid_t user) {
    const PlayingUser playing(user);
    return Client::connect(client_options(daemon.socket()));
  };
  const auto domains_of_clients = [&] {
    std::multiset<std::string> domains;
    const Json status = daemon.status();
    for (const Json& client : status["clients"]) domains.insert(client["domain"]);
    return domains;
  };
  const auto before = connect_as(60'001);
  ASSERT_TRUE(before.has_value()) << before.error().text;
  EXPECT_FALSE(connect_as(60'002).has_value());
  EXPECT_EQ(daemon.cli({"reload"}).out, "nothing has changed\n");

  write("sharing = \"listed\"\n[domains]\nteam = [\"nosuchuser\"]\n");
  EXPECT_THAT(daemon.cli({"reload"}).err, HasSubstr("'nosuchuser' in 'team' is unknown"));
  write("sharing = \"listed\"\n[domains]\nteam = [0, 60002]\nother = [60001]\n");
  const auto reloaded = daemon.cli({"reload"});
  EXPECT_THAT(reloaded.out, HasSubstr("domains = other=60001;team=0,60002")) << reloaded.err;
  const auto moved = connect_as(60'001), added = connect_as(60'002);
  ASSERT_TRUE(moved.has_value() && added.has_value());
  EXPECT_THAT(domains_of_clients(), ElementsAre("other", "team", "team")) << "one is there still";

  daemon.kill_keeper();
  const auto again = connect_as(60'001);
  ASSERT_TRUE(again.has_value());
  EXPECT_THAT(domains_of_clients(), ElementsAre("other", "other", "team", "team"));
  const auto taken = run("kvhived", {"--take-over", "--socket", daemon.socket()});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
  write("sharing = \"all\"\n");
  EXPECT_EQ(daemon.cli({"reload"}).exit_code, 0);
  const auto anybody = connect_as(60'003);
  ASSERT_TRUE(anybody.has_value());
  EXPECT_EQ(domains_of_clients().count("all"), 1u);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST_F(Reload, WhatMayNotChangeIsNamedAndNothingChanges) {
  write("block-size = 16\n");
  const std::string log = std::filesystem::relative(file() + ".log");
  const Daemon daemon(
      {"--engines", "1", "--kv-cache-memory-bytes", "32M", "--config", file(), "--log-file", log});
  write("block-size = 32\nmax-queued-tokens = 77\n");
  const auto refused = daemon.cli({"reload"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("block-size: '32' instead of '16' takes a restart"));
  write("block-size = 32\nmax-queued-tokens = 77\nmax-num-seqs = 3\nswap-space = \"1M\"\n");
  const auto several = daemon.cli({"reload"}).err;
  for (const char* name : {"block-size: '32'", "max-num-seqs: '3'", "swap-space: '1048576B'"})
    EXPECT_THAT(several, HasSubstr(name));
  EXPECT_THAT(several, HasSubstr("they take a restart of the daemon; nothing was changed"));
  EXPECT_THAT(several, Not(HasSubstr("max-queued-tokens"))) << "this one may change";
  write("max-queued-tokens = ");
  EXPECT_THAT(daemon.cli({"reload"}).err, HasSubstr(file()));
  write("");
  EXPECT_EQ(daemon.cli({"reload"}).out, "nothing has changed\n");
}

/// A file of options that was changed without a reload is not read by whoever takes a place.
TEST_F(Reload, AFileThatWasChangedAndNotReloadedIsNotRead) {
  write("max-queued-tokens = 100000\n");
  const Daemon daemon({"--engines", "1", "--kv-cache-memory-bytes", "32M", "--config", file()});
  write("this is no file of options");
  daemon.kill_keeper();
  const auto taken = run("kvhived", {"--take-over", "--socket", daemon.socket()});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
  EXPECT_EQ(daemon.connect().generate(request_of("And", 4))->tokens.size(), 4u);
}

// -- another program ------------------------------------------------------------------------------

class OtherPrograms {
 public:
  OtherPrograms() { copy_programs(directory_.path()); }
  std::string path(const std::string& name) const { return directory_.path() / name; }

 private:
  TempDirectory directory_;
};

std::string program_of(pid_t pid) {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", unknown);
}

CommandResult run_at(const std::string& path, const std::vector<std::string>& arguments) {
  TempDirectory directory;
  const std::string out = directory.path() / "out";
  const pid_t pid = spawn(path, arguments, open(out.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  int status = 0;
  waitpid(pid, &status, 0);
  std::ostringstream text;
  text << std::ifstream(out).rdbuf();
  return {WEXITSTATUS(status), text.str(), {}};
}

TEST(TakeOver, AnotherProgramGoesOnAndEnginesFollowAndStreamsNoticeNothing) {
  const OtherPrograms others;
  const Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "32M"});
  const Streaming streaming(daemon);
  const Json before = daemon.status();
  const auto taken = run_at(others.path("kvhived"), {"--take-over", "--socket", daemon.socket()});
  EXPECT_EQ(taken.exit_code, 0);
  EXPECT_THAT(taken.out, HasSubstr("goes on as process " + std::to_string(daemon.pid())));
  EXPECT_EQ(program_of(daemon.pid()), others.path("kvhived"));
  EXPECT_EQ(program_of(daemon.keeper()), others.path("kvhived"));
  EXPECT_EQ(daemon.status()["engines"][0]["pid"], before["engines"][0]["pid"]);
  EXPECT_TRUE(eventually(
      [&] {
        return program_of(daemon.status()["steward"]["pid"]) == others.path("kvhive-steward");
      },
      kHang));
  EXPECT_EQ(daemon.cli({"engine", "restart", "all"}).exit_code, 0);
  const Json after = daemon.status();
  for (const Json& engine : after["engines"])
    EXPECT_EQ(program_of(engine["pid"]), others.path("kvhive-engine"));
  streaming.wait_for_a_round();
  // And back, again and again: nothing stays open.
  const auto open_now = [&] { return descriptors_of(daemon.pid()); };
  const std::size_t open_once = open_now();
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(run("kvhived", {"--take-over", "--socket", daemon.socket()}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return open_now() <= open_once; }, kHang));
  EXPECT_EQ(program_of(daemon.pid()), program("kvhived"));
  streaming.wait_for_a_round();
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
}

TEST(TakeOver, AProgramThatCannotBeExecutedOrIsAnotherDoesNotTakeOver) {
  const Daemon daemon;
  Client client = daemon.connect();
  const auto order = [&](std::uint32_t version, const std::string& program) {
    const UniqueFd asker = std::move(*connect_to_daemon(daemon.socket()));
    EXPECT_TRUE(say_hello(asker.get(), InspectorHello{layout_hash({}), 0}));
    const auto answer =
        ask_keeper<Done>(asker.get(), Order{1, Order::What::take_over, 0, 0, version},
                         Json{{"program", program}}.dump());
    EXPECT_FALSE(answer.has_value());
    return answer ? "" : answer.error().text;
  };
  EXPECT_THAT(order(kLedgerVersion, "/nowhere/kvhived"), HasSubstr("/nowhere/kvhived"));
  EXPECT_THAT(order(kLedgerVersion + 1, program("kvhived")), HasSubstr("ledger is of version"));
  EXPECT_EQ(program_of(daemon.pid()), program("kvhived"));
  EXPECT_EQ(client.generate(request_of("And", 4))->tokens.size(), 4u);
  const auto nobody = run("kvhived", {"--take-over", "--socket", daemon.directory() + "/other"});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("/other"));
}

TEST(TakeOver, OptionsThatTheDaemonWouldNotUseAreRefused) {
  const Daemon daemon;
  const Json before = daemon.status()["keeper"];
  const auto refused = run("kvhived", {"--take-over", "--socket", daemon.socket(), "--engines", "5",
                                       "--lock-metadata", "--detach", "--config", "/nowhere"});
  EXPECT_EQ(refused.exit_code, 1);
  for (const char* text : {"--engines", "--lock-metadata", "--detach", "--config",
                           "the daemon keeps its own options", "kvhive reload"})
    EXPECT_THAT(refused.err, HasSubstr(text));
  EXPECT_EQ(daemon.status()["keeper"], before) << "nothing has happened";
}

/// Killed at any moment of it, the next keeper or the front goes on with it.
TEST(TakeOver, KeeperAndFrontMayBeKilledMeanwhile) {
  for (const bool kills_front : {false, true}) {
    const OtherPrograms others;
    TempDirectory directory;
    const std::string socket = directory.path() / "s";
    const pid_t front =
        spawn(program("kvhived"),
              {"--model", kDemoModel, "--socket", socket, "--engines", "1", "--threads", "1",
               "--kv-cache-memory-bytes", "8M", "--log-level", "off"});
    ASSERT_TRUE(eventually(
        [&] {
          const auto told =
              run("kvhive", {"pool", "procs", "--socket", socket, "--format", "json"});
          return told.exit_code == 0 && told.json()["keeper"]["state"] == "serving";
        },
        kHang));
    Client client = std::move(*Client::connect(client_options(socket)));
    const pid_t keeper = keeper_of(front);
    signal_process(keeper, SIGSTOP);
    const pid_t asker = spawn(others.path("kvhived"), {"--take-over", "--socket", socket});
    ASSERT_TRUE(eventually(
        [&] { return program_of(asker) == others.path("kvhived") && state_of(asker) == 'S'; }));
    if (kills_front) signal_process(front, SIGKILL);
    signal_process(keeper, kills_front ? SIGCONT : SIGKILL);
    int status = 0;
    waitpid(asker, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(client.generate(request_of("And", 4))->tokens.size(), 4u);
    EXPECT_EQ(program_of(kills_front ? keeper : front), others.path("kvhived"));
    EXPECT_EQ(run("kvhive", {"stop", "--socket", socket}).exit_code, 0);
    waitpid(front, nullptr, 0);
  }
}

}  // namespace
}  // namespace kvhive::testing
