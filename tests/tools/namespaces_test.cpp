// Engines, clients and the daemon in PID, mount, IPC and time namespaces of their own, as in
// containers: all they share is the socket.

#include <fcntl.h>

#include <fstream>

#include "pool/care/pool_report.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/namespaces.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

constexpr long kDay = 86'400;

#define SKIP_WITHOUT_NAMESPACES() \
  if (!can_make_namespaces()) GTEST_SKIP() << "NOT RUN: needs root, to make namespaces"

/// A program started in namespaces of its own (in_namespaces()), or in the test's.
class Started {
 public:
  Started(const std::string& name, const std::vector<std::string>& arguments,
          const BeforeExec& before_exec = {})
      : pid_(spawn(program(name), arguments, -1, -1, [before_exec] {
          prctl(PR_SET_PDEATHSIG, SIGKILL);
          if (before_exec) before_exec();
        })) {}
  Started(Started&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Started& operator=(Started&&) = delete;
  ~Started() {
    if (pid_ == 0) return;
    signal_process(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  /// Has a process inside the program's PID namespace kill it.
  void kill_from_inside() { end(SIGUSR1); }
  void kill() { end(SIGKILL); }
  pid_t pid() const { return pid_; }

 private:
  void end(int signal) {
    signal_process(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid_;
};

/// Starts an engine as an operator does in a container: with model and socket only.
Started start_guest(const Daemon& daemon, const BeforeExec& before_exec,
                    std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--model", kDemoModel, "--socket", daemon.socket(), "--threads", "1",
                           "--log-level", "error"});
  return Started("kvhive-engine", more, before_exec);
}

/// The process that is signed in as an engine, once there is one.
Json await_engine(const Daemon& daemon, std::uint32_t number) {
  Json found;
  EXPECT_TRUE(eventually([&] { return !(found = daemon.engine(number)).is_null(); }, kHang));
  return found;
}

bool is_swept(const Daemon& daemon, std::size_t left) {
  const Json slots = daemon.status()["slots"];
  return slots.size() == left;
}

/// The number a process has in its own PID namespace.
pid_t pid_inside(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("NSpid:", 0) == 0) return std::stoi(line.substr(line.rfind('\t') + 1));
  return 0;
}

const std::vector<std::string> kOneEngine = {"--kv-cache-memory-bytes", "32M"};

TEST(Namespaces, PrefixesAreHitAcrossNamespaces) {
  SKIP_WITHOUT_NAMESPACES();
  const Daemon daemon(kOneEngine);
  const Started guest = start_guest(daemon, in_namespaces(kDay));
  const Json process = await_engine(daemon, 1);
  EXPECT_EQ(pid_inside(process["pid"]), 2)
      << "the pool has the pid of the test's namespace: " << process;

  for (const auto& [first, second] : {std::pair{0u, 1u}, {1u, 0u}}) {
    const GenerateRequest request = request_of(passage().substr(first * 500), 32);
    const Progress computed = *daemon.connect(first).generate(request);
    const Progress hit = *daemon.connect(second).generate(request);
    EXPECT_EQ(computed.cached_tokens, 0u);
    EXPECT_EQ(hit.engine, second);
    EXPECT_EQ(hit.cached_tokens, (hit.prompt_tokens - 1) / 16 * 16);
    EXPECT_EQ(ids(hit), ids(computed));
  }
  EXPECT_TRUE(daemon.fsck_is_clean()) << daemon.cli({"pool", "fsck"}).out;
}

TEST(Namespaces, AnEngineKilledInsideIsNoticedAndSwept) {
  SKIP_WITHOUT_NAMESPACES();
  const Daemon daemon(kOneEngine);
  const GenerateRequest request = request_of("And it came to pass in those days", 1200);
  const Progress undisturbed = *daemon.connect(0).generate(request);
  Started guest = start_guest(daemon, in_namespaces());
  await_engine(daemon, 1);
  Client client = daemon.connect(1);
  const RequestId number = *client.submit(request);
  std::vector<TokenId> tokens;
  const auto read_on = [&] {
    EXPECT_TRUE(client.wait().has_value());
    const Progress news = *client.read(number);
    for (const TokenId token : ids(news)) tokens.push_back(token);
    return news.reason;
  };
  while (tokens.size() < 200) ASSERT_EQ(read_on(), Finish::none);
  guest.kill_from_inside();
  EXPECT_TRUE(eventually([&] { return is_swept(daemon, 1); }, kHang));
  EXPECT_TRUE(daemon.fsck_is_clean());
  const Json device = daemon.stat()["tiers"]["device"];
  EXPECT_EQ(device["held"], 0);
  EXPECT_EQ(device["filling"], 0);

  const Started next = start_guest(daemon, in_namespaces(kDay), {"--index", "1"});
  Finish reason = Finish::none;
  while (reason == Finish::none) reason = read_on();
  EXPECT_EQ(reason, Finish::length);
  EXPECT_EQ(tokens, ids(undisturbed));
}

TEST(Namespaces, TwoEnginesWithTheSamePidInsideAreToldApart) {
  SKIP_WITHOUT_NAMESPACES();
  const Daemon daemon(kOneEngine);
  Started first = start_guest(daemon, in_namespaces(), {"--index", "1"});
  const Started second = start_guest(daemon, in_namespaces(), {"--index", "2"});
  const pid_t first_pid = await_engine(daemon, 1)["pid"];
  const pid_t second_pid = await_engine(daemon, 2)["pid"];
  EXPECT_NE(first_pid, second_pid);
  EXPECT_EQ(pid_inside(first_pid), pid_inside(second_pid));

  const GenerateRequest request = request_of("And it came to pass in those days", 1200);
  const Progress undisturbed = *daemon.connect(0).generate(request);
  std::vector<Client> clients;
  clients.push_back(daemon.connect(2));
  Client victim = daemon.connect(1);
  ASSERT_TRUE(victim.submit(request).has_value());
  ASSERT_TRUE(victim.wait().has_value());
  const ChildProcess killer([&] { signal_process(first.pid(), SIGUSR1); });
  const std::vector<Progress> results = generate_all(clients, {request, request});
  for (const Progress& result : results) EXPECT_EQ(ids(result), ids(undisturbed));
  EXPECT_TRUE(eventually([&] { return is_swept(daemon, 2); }, kHang));
  EXPECT_EQ(daemon.engine(2)["pid"], second_pid);
  EXPECT_TRUE(daemon.engine(1).is_null());
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Namespaces, ANumberIsGivenToOneGuestOnly) {
  const Daemon daemon(kOneEngine);
  const Started guest = start_guest(daemon, {});
  await_engine(daemon, 1);
  for (const auto& [index, free] : {std::pair{"0", "use 2"}, {"1", "use 2"}}) {
    const CommandResult refused =
        run("kvhive-engine", {"--model", kDemoModel, "--socket", daemon.socket(), "--threads", "1",
                              "--log-level", "error", "--index", index});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_NE(refused.err.find(std::string("engine ") + index + " is there already"),
              std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find(free), std::string::npos) << refused.err;
  }
}

/// The cached tokens of 60 prompts, in a pool so small that they evict each other.
std::vector<std::uint32_t> hits_with_clock_offset(long offset) {
  const Daemon daemon({"--num-gpu-blocks-override", "40", "--max-model-len", "512"});
  const Started guest = start_guest(daemon, in_namespaces(offset));
  await_engine(daemon, 1);
  std::vector<Client> clients;
  clients.push_back(daemon.connect(0));
  clients.push_back(daemon.connect(1));
  const std::string text = passage();
  const PoolMemory pool = daemon.pool();
  std::vector<std::uint32_t> hits;
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t prompt = (i * i + i / 5) % 11;  // some repeat soon, some late, some never
    const auto result =
        clients[i * 7 / 3 % 2].generate(request_of(text.substr(prompt * 60, 350), 2));
    EXPECT_TRUE(result.has_value());
    hits.push_back(result->cached_tokens);
    // An engine releases its blocks after the last token is out: wait for that before the next
    // prompt.
    EXPECT_TRUE(eventually(
        [&] {
          const TierReport device = report_pool(pool).tiers[0];
          return device.held == 0 && device.filling == 0;
        },
        kHang));
  }
  EXPECT_GT(daemon.stat()["evicted_blocks"], 50);
  return hits;
}

TEST(Namespaces, AnotherClockDoesNotChangeWhatIsEvicted) {
  SKIP_WITHOUT_NAMESPACES();
  const auto hits = hits_with_clock_offset(0);
  EXPECT_GT(std::count_if(hits.begin(), hits.end(), [](auto n) { return n > 0; }), 5);
  EXPECT_GT(std::count(hits.begin(), hits.end(), 0u), 5);
  EXPECT_EQ(hits_with_clock_offset(365 * kDay), hits);
}

TEST(Namespaces, ClientsMayRunInTheirOwnNamespaces) {
  SKIP_WITHOUT_NAMESPACES();
  const Daemon daemon(kOneEngine);
  const CommandResult generated =
      run("kvhive",
          {"generate", "--socket", daemon.socket(), "--prompt", "And God said", "--max-tokens", "8",
           "--ignore-eos", "--format", "json"},
          in_namespaces(kDay));
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_EQ(run("kvhive", {"pool", "fsck", "--socket", daemon.socket()}, in_namespaces()).exit_code,
            0);

  Started client("kvhive",
                 {"generate", "--socket", daemon.socket(), "--prompt", "And it came to pass",
                  "--max-tokens", "3500", "--ignore-eos", "--format", "json"},
                 in_namespaces());
  EXPECT_TRUE(eventually([&] { return daemon.engine(0)["running"] == 1; }, kHang));
  client.kill_from_inside();
  EXPECT_TRUE(eventually([&] { return daemon.status()["clients"].empty(); }, kHang));
  EXPECT_TRUE(eventually(
      [&] {
        const Json device = daemon.stat()["tiers"]["device"];
        return device["held"] == 0 && device["filling"] == 0;
      },
      kHang));
}

TEST(Namespaces, ADaemonServesEnginesAndClientsItCannotSee) {
  SKIP_WITHOUT_NAMESPACES();
  const Daemon daemon(kOneEngine, in_namespaces(kDay));
  // The guest is in the test's namespace, whose pids the daemon cannot see.
  Started guest = start_guest(daemon, {});
  EXPECT_EQ(await_engine(daemon, 1)["pid"], guest.pid())
      << "the pid that the engine itself reported";
  const Json engines = daemon.status()["engines"];
  EXPECT_EQ(engines[1]["pid"], 0);
  const GenerateRequest request = request_of(passage(), 48);
  const Progress inside = *daemon.connect(0).generate(request);
  const Progress outside = *daemon.connect(1).generate(request);
  EXPECT_EQ(outside.cached_tokens, (outside.prompt_tokens - 1) / 16 * 16);
  EXPECT_EQ(ids(outside), ids(inside));
  EXPECT_TRUE(daemon.fsck_is_clean()) << daemon.cli({"pool", "fsck"}).out;
  guest.kill();
  EXPECT_TRUE(eventually([&] { return is_swept(daemon, 1); }, kHang));
  EXPECT_TRUE(daemon.fsck_is_clean());
}

TEST(Namespaces, AGuestDoesNotOutliveTheDaemon) {
  Daemon daemon(kOneEngine);
  const Started guest = start_guest(daemon, {});
  await_engine(daemon, 1);
  daemon.kill();
  EXPECT_TRUE(eventually([&] { return !is_alive(guest.pid()); }, kHang));
}

TEST(Namespaces, TheDaemonIsProcess1OfAContainer) {
  SKIP_WITHOUT_NAMESPACES();
  Daemon daemon({"--engines", "2", "--kv-cache-memory-bytes", "16M"}, as_process_1());
  Client client = daemon.connect();
  const auto expected = ids(*client.generate(request_of("And", 64)));
  const pid_t front = children_of(daemon.pid()).at(0);
  EXPECT_EQ(pid_inside(front), 1);
  for (const pid_t orphan : processes_of(front)) {  // the keeper, the steward, engines
    signal_process(orphan, SIGKILL);
    EXPECT_EQ(ids(*client.generate(request_of("And", 64))), expected);
  }
  EXPECT_TRUE(eventually([&] { return daemon.fsck_is_clean(); }, kHang));
  const auto state = [&](const Json& engine) { return engine["state"] == "serving"; };
  EXPECT_TRUE(eventually(
      [&] {
        const Json engines = daemon.status()["engines"];
        return std::all_of(engines.begin(), engines.end(), state);
      },
      kHang));
  signal_process(daemon.pid(), SIGTERM);
  siginfo_t ended{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(daemon.pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(ended.si_status, 0);
  EXPECT_TRUE(std::filesystem::is_empty(daemon.directory()));
}

}  // namespace
}  // namespace kvhive::testing
