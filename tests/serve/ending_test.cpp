// The service's begin and end: waiting for a daemon, what SIGHUP does, and what becomes of requests
// when it is to end.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/resource.h>

#include <fstream>
#include <thread>

#include "tests/serve/served.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/tools/footprint.hpp"
#include "tools/serve/trace/span_file.hpp"

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

std::string completion_request(std::uint32_t tokens, bool stream, const std::string& headers = "") {
  const Json body = {{"prompt", "In the beginning"},
                     {"max_tokens", tokens},
                     {"ignore_eos", true},
                     {"stream", stream}};
  return post(kCompletions, body.dump(), headers);
}

/// Whether it answers so many requests at this moment, the one that asks included.
bool answers(const Service& service, int requests) {
  const std::string row = "state=\"answering\"} " + std::to_string(requests);
  return service.ask(get("/metrics?view=service")).body.find(row) != std::string::npos;
}

TEST(StartingService, WaitsForADaemonIfItIsToldTo) {
  const TempDirectory directory;
  const std::string socket = (directory.path() / "kvhived.sock").string();
  const std::string log = (directory.path() / "log").string();
  std::optional<Service> service;
  std::thread starting([&] {
    service.emplace(socket,
                    std::vector<std::string>{"--wait-for-daemon", "600", "--log-file", log});
  });
  EXPECT_TRUE(
      eventually([&] { return std::filesystem::exists(log) && !directory.read("log").empty(); }));
  EXPECT_THAT(directory.read("log"), HasSubstr("waiting for a daemon, 600 s at most"));
  const Daemon daemon;
  std::filesystem::create_symlink(daemon.socket(), socket);
  starting.join();
  EXPECT_EQ(service->ask(get("/health")).status, 200);
}

TEST(StartingService, WithoutADaemonSaysSoWhenItsPatienceEnds) {
  const CommandResult result =
      run("kvhive", {"serve", "--socket", "/nowhere/kvhived.sock", "--wait-for-daemon", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no daemon listens on /nowhere/kvhived.sock"));
}

TEST(EndingService, TellsThoseThatWaitThatItEnds) {
  const Daemon daemon;
  Service service(daemon.socket());
  HttpClient streaming = service.connect(), waiting = service.connect();
  streaming.send(completion_request(3'000, true));
  ASSERT_TRUE(streaming.receive_until("data: "));
  daemon.signal_engines(SIGSTOP);
  waiting.send(completion_request(5, false));
  ASSERT_TRUE(eventually([&] { return answers(service, 3); }));
  signal_process(service.pid(), SIGTERM);
  const auto stream = streaming.receive(), answer = waiting.receive();
  ASSERT_TRUE(stream && answer);
  const std::vector<std::string> events = stream->events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(events.at(events.size() - 2), HasSubstr("the service is being stopped"));
  EXPECT_EQ(answer->status, 503);
  EXPECT_THAT(answer->body, HasSubstr("the service is being stopped"));
  EXPECT_EQ(service.stop(), 0);
  daemon.signal_engines(SIGCONT);
}

TEST(EndingService, LetsRequestsEndFirstIfItIsGivenTime) {
  const Daemon daemon;
  Service service(daemon.socket(), {"--shutdown-timeout", "60"});
  HttpClient client = service.connect();
  client.send(completion_request(1'000, true));
  ASSERT_TRUE(client.receive_until("data: "));
  signal_process(service.pid(), SIGTERM);
  const auto whole = client.receive();
  ASSERT_TRUE(whole);
  const std::vector<std::string> events = whole->events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(events.at(events.size() - 2), HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(service.stop(), 0);
}

TEST(EndingService, EndsAtOnceWhenItIsToldTwice) {
  const Daemon daemon;
  Service service(daemon.socket(), {"--shutdown-timeout", "600"});
  HttpClient client = service.connect();
  client.send(completion_request(3'000, true));
  ASSERT_TRUE(client.receive_until("data: "));
  daemon.signal_engines(SIGSTOP);
  signal_process(service.pid(), SIGTERM);
  ASSERT_TRUE(eventually([&] { return !service.listens(); }));  // else two signals may be one
  EXPECT_EQ(service.stop(), 0);
  daemon.signal_engines(SIGCONT);
}

/// It waits for a channel to a keeper that does not answer, for up to ten seconds.
TEST(EndingService, DoesNotWaitForAStoppedKeeper) {
  const TempDirectory directory;
  const std::string spans = (directory.path() / "spans").string();
  const Daemon daemon;
  Service service(daemon.socket(), {"--trace-file", spans});
  signal_process(daemon.keeper(), SIGSTOP);
  HttpClient waiting = service.connect();
  waiting.send(completion_request(5, false));
  ASSERT_TRUE(eventually([&] { return answers(service, 2); }));
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(service.stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(6));
  ASSERT_TRUE(waiting.receive());
  EXPECT_THAT(directory.read("spans"), HasSubstr("the service is being stopped"));
  signal_process(daemon.keeper(), SIGCONT);
}

// A renderer notices by itself that its service has ended, but not at once; a stopped one, never.
TEST(EndingService, LeavesNoRendererWhereItDoesNotWait) {
  const Daemon daemon;
  Service service(daemon.socket());
  const std::vector<pid_t> renderers = children_of(service.pid());
  ASSERT_EQ(renderers.size(), 1u);
  signal_process(renderers.front(), SIGSTOP);
  signal_process(daemon.keeper(), SIGSTOP);
  HttpClient waiting = service.connect();
  waiting.send(completion_request(5, false));
  ASSERT_TRUE(eventually([&] { return answers(service, 2); }));
  EXPECT_EQ(service.stop(), 0);
  EXPECT_EQ(kill(renderers.front(), 0), -1);
  signal_process(daemon.keeper(), SIGCONT);
}

// A second SIGTERM finds it wherever it is on its way out.
TEST(EndingService, EndsByItsOwnCodeHoweverOftenItIsTold) {
  const TempDirectory directory;
  const std::string spans = (directory.path() / "spans").string();  // written by a thread
  const Daemon daemon;
  for (int i = 0; i < 20; ++i) {
    Service service(daemon.socket(), {"--trace-file", spans});
    EXPECT_EQ(service.ask(get("/health")).status, 200);
    std::atomic<bool> has_ended = false;
    std::thread telling([&] {
      while (!has_ended) signal_process(service.pid(), SIGTERM);
    });
    siginfo_t how{};
    waitid(P_PID, static_cast<id_t>(service.pid()), &how, WEXITED | WNOWAIT);
    has_ended = true;
    telling.join();
    EXPECT_EQ(service.stop(), 0);
  }
}

TEST(HangUp, ReadsTheKeysAndOpensTheTraceFileAnew) {
  const TempDirectory directory;
  directory.write("keys", "old\n");
  const std::string keys = (directory.path() / "keys").string();
  const std::string spans = (directory.path() / "spans").string();
  const Daemon daemon;
  const Service service(daemon.socket(),
                        {"--api-key-file", keys, "--trace-file", spans, "--log-file",
                         (directory.path() / "log").string(), "--log-level", "info"});
  const auto has_said = [&](const std::string& words) {
    return eventually([&] { return directory.read("log").find(words) != std::string::npos; });
  };
  const auto status_with = [&](const std::string& key) {
    return service.ask(completion_request(1, false, "Authorization: Bearer " + key + "\r\n"))
        .status;
  };
  EXPECT_EQ(status_with("old"), 200);
  ASSERT_TRUE(eventually([&] { return !directory.read("spans").empty(); }));
  std::filesystem::rename(spans, spans + ".1");
  directory.write("keys", "new\n");
  signal_process(service.pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] { return status_with("new") == 200; }));
  EXPECT_EQ(status_with("old"), 401);
  ASSERT_TRUE(eventually(
      [&] { return std::filesystem::exists(spans) && !directory.read("spans").empty(); }));

  directory.write("keys", "third elsewhere\n");  // another domain
  signal_process(service.pid(), SIGHUP);
  ASSERT_TRUE(has_said("other domains than before take a restart; the keys stay as they were"));
  EXPECT_EQ(status_with("new"), 200);
  EXPECT_EQ(status_with("third"), 401);

  // Nobody writes into it: who opened it would wait for ever.
  std::filesystem::remove(keys);
  ASSERT_EQ(mkfifo(keys.c_str(), 0600), 0);
  signal_process(service.pid(), SIGHUP);
  ASSERT_TRUE(has_said("is no file any more; the keys stay as they were"));
  EXPECT_EQ(status_with("new"), 200);
}

TEST(HangUp, OpensTheLogFileAnew) {
  const TempDirectory directory;
  directory.write("keys", "key\n");
  const std::string log = (directory.path() / "log").string();
  const Daemon daemon;
  const Service service(daemon.socket(), {"--api-key-file", (directory.path() / "keys").string(),
                                          "--log-file", log, "--log-level", "info"});
  std::filesystem::rename(log, log + ".1");
  signal_process(service.pid(), SIGHUP);
  ASSERT_TRUE(
      eventually([&] { return std::filesystem::exists(log) && !directory.read("log").empty(); }));
  EXPECT_THAT(directory.read("log"), HasSubstr("the keys are those of"));
}

/// Its body is long, so it is parsed after the keys have changed. No other key is without a domain.
TEST(HangUp, ARequestKeepsTheKeyThatItWasAskedWith) {
  const TempDirectory directory;
  directory.write("keys", "old red\nnew red\n");
  const std::string keys = (directory.path() / "keys").string();
  const Daemon daemon({"--kv-cache-memory-bytes", "32M", "--domains", "red=4242"});
  const Service service(daemon.socket(), {"--api-key-file", keys});
  const Json body = {{"prompt", std::string(6'000'000, 'a')}, {"max_tokens", 1}};
  std::vector<HttpClient> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(service.connect());
    clients.back().send(post(kCompletions, body.dump(), "Authorization: Bearer old\r\n"));
  }
  directory.write("keys", "new red\n");
  signal_process(service.pid(), SIGHUP);
  for (HttpClient& client : clients) EXPECT_TRUE(client.receive());
  EXPECT_EQ(service.ask(completion_request(1, false, "Authorization: Bearer new\r\n")).status, 200);
}

/// As when a disk fills up and then has room again.
TEST(SpanFileTest, ALineThatFoundNoRoomDoesNotSpoilTheNext) {
  const TempDirectory directory;
  const std::string path = (directory.path() / "spans").string();
  const auto write = [&](const std::string& line) { SpanFile::open(path).value()->write(line); };
  write("whole");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto file = SpanFile::open(path).value();
  const rlimit full{10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  file->write("0123456789");
  ASSERT_TRUE(eventually([&] { return directory.read("spans").size() == 10; }));
  setrlimit(RLIMIT_FSIZE, &before);
  file->write("next");
  file.reset();
  EXPECT_EQ(directory.read("spans"), "whole\n0123\nnext\n");
}

}  // namespace
}  // namespace kvhive::testing
