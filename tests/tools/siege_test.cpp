// Kills clients, stewards and daemons thousands of times, and restarts engines one after another
// under load. Nothing is left behind, no process grows, and no other process is disturbed.
//
// A usual test run does a small part of it; `make siege` (KVHIVE_SIEGE=1) does all.

#include <fcntl.h>
#include <poll.h>

#include <memory>
#include <optional>
#include <random>

#include "base/check.hpp"
#include "ipc/pidfd.hpp"
#include "tests/crash/settings.hpp"
#include "tests/support/child_process.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/tools/daemon.hpp"
#include "tests/tools/footprint.hpp"

namespace kvhive::testing {
namespace {

/// \param keeper  0 = there is none
/// Returns `siege` under `make siege`, and `dose` in a usual test run.
int how_many(int siege, int dose) { return std::getenv("KVHIVE_SIEGE") != nullptr ? siege : dose; }

/// Reads the clock a random number of times, at most `most`, to kill at a random moment.
void dawdle(std::mt19937_64& random, std::uint64_t most) {
  for (std::uint64_t looks = random() % (most + 1); looks > 0; --looks)
    (void)std::chrono::steady_clock::now();
}

/// Whether keeper and engine 0 have released all clients and their channels.
bool has_no_clients(const Daemon& daemon) {
  const Json status = daemon.status();
  return status["clients"].empty() && status["engines"][0]["state"] == "serving" &&
         !has_memory_object(daemon.pid(), "requests") &&
         !has_memory_object(status["engines"][0]["pid"], "answers");
}

/// Open descriptors and memory of a daemon's processes while they are idle.
struct Footprint {
  std::size_t keeper_descriptors = 0, engine_descriptors = 0, steward_descriptors = 0;
  std::size_t keeper_objects = 0;
  std::size_t keeper_memory = 0, engine_memory = 0;

  static Footprint of(const Daemon& daemon) {
    const Json status = daemon.status();
    const pid_t engine = status["engines"][0]["pid"], steward = status["steward"]["pid"];
    return {descriptors_of(daemon.pid()),
            descriptors_of(engine),
            descriptors_of(steward),
            memory_objects_of(daemon.pid()).size(),
            memory_of(daemon.keeper(), "RssAnon"),
            memory_of(engine, "RssAnon")};
  }
  /// Waits until as many descriptors and objects are open as in `before`; a failure after a minute.
  static Footprint once_like(const Footprint& before, const Daemon& daemon) {
    Footprint now;
    EXPECT_TRUE(eventually(
        [&] {
          now = of(daemon);
          return now.has_as_many_open_as(before);
        },
        kHang));
    return now;
  }
  bool has_as_many_open_as(const Footprint& before) const {
    return keeper_descriptors == before.keeper_descriptors &&
           engine_descriptors == before.engine_descriptors &&
           steward_descriptors == before.steward_descriptors &&
           keeper_objects == before.keeper_objects;
  }
  void print(const char* when) const {
    std::printf(
        "%s: descriptors of keeper, engine, steward %zu, %zu, %zu; memory objects %zu; keeper %zu "
        "KiB of its own, engine %zu KiB\n",
        when, keeper_descriptors, engine_descriptors, steward_descriptors, keeper_objects,
        keeper_memory >> 10, engine_memory >> 10);
  }
};

/// Allocators keep some freed memory, hence the slack. A leak of one page per death would be far
/// more.
void expect_no_growth(const Footprint& before, const Footprint& after) {
  if (kUnderSanitizer) return;  // a sanitizer keeps freed memory
  constexpr std::size_t kSlack = std::size_t{4} << 20;
  EXPECT_LT(after.keeper_memory, before.keeper_memory + kSlack);
  EXPECT_LT(after.engine_memory, before.engine_memory + 2 * kSlack);
}

// -- clients --------------------------------------------------------------------------------------

/// A client process that streams tokens until it is killed. It writes "s" to a pipe at the first
/// token.
class StreamingClient {
 public:
  StreamingClient(const Daemon& daemon, int engine) {
    int ends[2];
    KV_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    flows_ = UniqueFd(ends[0]);
    const UniqueFd say(ends[1]);
    process_ = ChildProcess([&] {
      auto client = Client::connect(
          client_options(daemon.socket(), static_cast<std::uint32_t>(engine), kLeastChannelBytes));
      if (!client) _exit(1);
      const auto number = client->submit(request_of("And it came to pass", 3000));
      if (!number) _exit(1);
      for (bool has_said = false; client->wait().has_value();) {
        const Progress news = *client->read(*number);
        if (!news.tokens.empty() && !std::exchange(has_said, true)) (void)!write(say.get(), "s", 1);
        if (news.reason != Finish::none) pause();
      }
      _exit(1);
    });
  }
  int flows() const { return flows_.get(); }
  void kill() { EXPECT_TRUE(process_.kill_and_wait()) << "the client had already ended"; }

 private:
  UniqueFd flows_;
  ChildProcess process_;
};

TEST(Siege, KilledClientsLeaveNothing) {
  const int kills = how_many(5000, 48);
  constexpr int kAtATime = 12;
  std::mt19937_64 random(chosen_seed());
  const auto shm = named_shared_memory();
  const Daemon daemon({"--kv-cache-memory-bytes", "32M"});
  const auto serves = [&] {
    return daemon.connect(0, kLeastChannelBytes).generate(request_of("And God said", 8));
  };
  ASSERT_EQ(serves()->tokens.size(), 8u);
  const auto settled = [&] { return has_no_clients(daemon); };
  ASSERT_TRUE(eventually(settled, kHang));
  const Footprint before = Footprint::of(daemon);

  std::vector<StreamingClient> clients;
  for (int killed = 0; killed < kills;) {
    while (clients.size() < kAtATime) clients.emplace_back(daemon, 0);
    std::vector<pollfd> flowing;
    for (const StreamingClient& client : clients) flowing.push_back({client.flows(), POLLIN, 0});
    ASSERT_GT(poll(flowing.data(), flowing.size(), 60'000), 0) << "hangs after " << killed;
    dawdle(random, 20'000);
    for (std::size_t i = clients.size(); i-- > 0;) {
      if (flowing[i].revents == 0) continue;
      clients[i].kill();
      clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
      ++killed;
    }
  }
  clients.clear();
  EXPECT_TRUE(eventually(settled, kHang));
  EXPECT_TRUE(eventually([&] { return daemon.nothing_is_held(); }, kHang));
  const Footprint after = Footprint::once_like(before, daemon);
  before.print("before");
  after.print("after ");
  expect_no_growth(before, after);
  EXPECT_EQ(serves()->tokens.size(), 8u);
  EXPECT_EQ(daemon.status()["engines"][0]["restarts"], 0);
  EXPECT_EQ(daemon.status()["steward"]["restarts"], 0);
  EXPECT_TRUE(daemon.fsck_is_clean());
  EXPECT_EQ(named_shared_memory(), shm);
}

// -- the steward ----------------------------------------------------------------------------------

/// A daemon whose steward is killed again and again, every other time just as the steward begins to
/// reap a dead engine.
class StewardUnderFire {
 public:
  explicit StewardUnderFire(std::uint64_t seed) : random_(seed) {
    serve();
    EXPECT_TRUE(eventually([this] { return has_no_clients(daemon_); }, kHang));
    before_ = Footprint::of(daemon_);
  }

  /// Kills the current steward. `next_is_there` tells whether it has been replaced.
  void kill(bool while_it_reaps) {
    const Json status = daemon_.status();
    dead_ = status["steward"]["pid"];
    const pid_t engine = status["engines"][0]["pid"];
    if (while_it_reaps && engine != 0) {
      Client client = daemon_.connect(0, kLeastChannelBytes);  // gives the engine blocks to reap
      (void)client.submit(request_of("And it came to pass", 500));
      (void)client.wait(std::chrono::milliseconds(1000));
      signal_process(engine, SIGKILL);
      dawdle(random_, 40'000);
    }
    signal_process(dead_, SIGKILL);
  }
  bool next_is_there() const {
    const Json status = daemon_.status();
    const pid_t steward = status["steward"]["pid"];  // 0 until the next one is started
    if (steward == 0 || steward == dead_ || status["engines"][0]["state"] != "serving")
      return false;
    for (const Json& slot : status["slots"])
      if (slot["use"] != "used") return false;  // this slot is not swept yet
    return true;
  }
  void serve() const {
    EXPECT_EQ(daemon_.connect(0, kLeastChannelBytes)
                  .generate(request_of("And God said", 8))
                  ->tokens.size(),
              8u);
  }
  void expect_unharmed() const {
    serve();
    EXPECT_TRUE(eventually([&] { return daemon_.nothing_is_held(); }, kHang));
    EXPECT_TRUE(daemon_.fsck_is_clean());
    EXPECT_TRUE(eventually([this] { return has_no_clients(daemon_); }, kHang));
    const Footprint after = Footprint::once_like(before_, daemon_);
    expect_no_growth(before_, after);
    before_.print("before");
    after.print("after ");
  }

 private:
  std::mt19937_64 random_;
  Daemon daemon_{{"--kv-cache-memory-bytes", "8M"}};
  Footprint before_;
  pid_t dead_ = 0;
};

TEST(Siege, KilledStewardsAreReplacedAndTheirSweepsFinished) {
  // A steward that dies young is replaced after a pause. Several daemons at a time share the
  // pauses.
  const int kills = how_many(1000, 8);
  const std::size_t at_a_time = static_cast<std::size_t>(how_many(20, 4));
  const std::uint32_t seed = chosen_seed();
  const auto shm = named_shared_memory();
  std::vector<std::unique_ptr<StewardUnderFire>> daemons;
  for (std::size_t i = 0; i < at_a_time; ++i)
    daemons.push_back(std::make_unique<StewardUnderFire>(seed + i));
  for (int killed = 0; killed < kills;) {
    for (auto& daemon : daemons) daemon->kill(killed++ % 2 == 1);
    for (auto& daemon : daemons)
      ASSERT_TRUE(eventually([&] { return daemon->next_is_there(); }, kHang)) << killed;
  }
  for (auto& daemon : daemons) daemon->expect_unharmed();
  daemons.clear();
  EXPECT_EQ(named_shared_memory(), shm);
}

// -- the daemon -----------------------------------------------------------------------------------

TEST(Siege, KilledDaemonsLeaveNothing) {
  const int kills = how_many(200, 6);
  std::mt19937_64 random(chosen_seed());
  const auto shm = named_shared_memory();
  char name[] = "/tmp/kvhive-test-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name);
  const auto socket = directory / "new/s";
  const UniqueFd silent{open("/dev/null", O_WRONLY | O_CLOEXEC)};
  int at_work = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    const pid_t daemon =
        spawn(program("kvhived"),
              {"--model", kDemoModel, "--socket", socket.string(), "--kv-cache-memory-bytes", "8M",
               "--log-level", "off", "--threads", "1"},
              silent.get(), silent.get());
    std::optional<Client> client;
    if (i % 3 != 0) {  // kill a daemon at work, while a client streams
      ASSERT_TRUE(eventually(
          [&] {
            auto connected =
                Client::connect(client_options(socket.string(), kAnyEngine, kLeastChannelBytes));
            if (connected) client.emplace(std::move(*connected));
            return client.has_value();
          },
          kHang));
      ASSERT_TRUE(client->submit(request_of("And it came to pass", 3000)).has_value());
      ASSERT_TRUE(client->wait(std::chrono::seconds(60)).has_value());
      ++at_work;
    } else {  // kill a daemon that starts and has a first child, the steward, which cleans up
      ASSERT_TRUE(eventually([&] { return has_a_child(keeper_of(daemon)); }, kHang));
    }
    dawdle(random, 200'000);
    const std::set<ino_t> objects = memory_objects_of(daemon);
    const std::vector<pid_t> children = processes_of(daemon);
    kill_daemon(daemon);
    if (client) {
      EXPECT_TRUE(eventually(
          [&] { return !client->wait(std::chrono::milliseconds(0)).has_value(); }, kHang));
    }
    client.reset();
    for (const pid_t child : children)
      EXPECT_TRUE(eventually([&] { return !is_alive(child); }, kHang)) << child;
    EXPECT_TRUE(eventually([&] { return std::filesystem::is_empty(directory); }, kHang));
    EXPECT_TRUE(eventually([&] { return holders_of(objects).empty(); }, kHang));
  }
  std::filesystem::remove_all(directory);
  EXPECT_EQ(named_shared_memory(), shm);
  std::printf("%d daemons killed, %d of them at work\n", kills, at_work);
}

// -- as many engines as there may be
// ---------------------------------------------------------------

TEST(Siege, EveryEngineOfAFullPoolHitsTheBlocksOfTheFirst) {
  const int engines = how_many(31, 4);
  const Daemon daemon({"--engines", std::to_string(engines), "--kv-cache-memory-bytes", "64M"});
  const GenerateRequest request = request_of(passage(), 16);
  const Progress first = *daemon.connect(0, kLeastChannelBytes).generate(request);
  for (int engine = 1; engine < engines; ++engine) {
    const auto number = static_cast<std::uint32_t>(engine);
    const Progress hit = *daemon.connect(number, kLeastChannelBytes).generate(request);
    EXPECT_EQ(hit.engine, number);
    EXPECT_EQ(hit.cached_tokens, (hit.prompt_tokens - 1) / 16 * 16);
    EXPECT_EQ(ids(hit), ids(first));
  }
  EXPECT_TRUE(daemon.fsck_is_clean());
  if (engines != static_cast<int>(kMaxProcesses)) return;
  const CommandResult one_more = run(
      "kvhive-engine", {"--model", kDemoModel, "--socket", daemon.socket(), "--log-level", "off"});
  EXPECT_EQ(one_more.exit_code, 1);
  EXPECT_NE(one_more.err.find("all 31 process slots are taken"), std::string::npos) << one_more.err;
}

// -- a rolling restart ----------------------------------------------------------------------------

/// Prompts as in recorded traffic: long prefixes that many prompts share, each with its own end.
std::vector<GenerateRequest> traffic() {
  const std::string text = passage();
  std::vector<GenerateRequest> requests;
  for (std::size_t i = 0; i < 24; ++i) {
    const std::size_t shared = 300 + i % 4 * 150;
    requests.push_back(request_of(text.substr(0, shared) + text.substr(700 + i * 11, 40),
                                  32 + static_cast<std::uint32_t>(i % 3) * 16));
    if (i % 2 == 0) continue;
    GenerateRequest& sampled = requests.back();
    sampled.temperature = 0.8f;
    sampled.top_k = 50;
    sampled.top_p = 0.95f;
    sampled.seed = i;
  }
  return requests;
}

struct Round {
  std::vector<std::vector<TokenId>> tokens;
  std::uint64_t prompt = 0, cached = 0;
};

Round play(std::vector<Client>& clients) {
  Round round;
  for (const Progress& result : generate_all(clients, traffic())) {
    EXPECT_EQ(result.reason, Finish::length) << result.error.text;
    round.tokens.push_back(ids(result));
    round.prompt += result.prompt_tokens;
    round.cached += result.cached_tokens;
  }
  return round;
}

/// Plays until a round finds no more than the one before. Two engines that compute a shared block
/// at the same moment give it two names; what follows the second name is found only once it has
/// been computed again.
Round settled(std::vector<Client>& clients, const Round& cold) {
  Round before = play(clients);
  for (int round = 0; round < 10; ++round) {
    Round next = play(clients);
    EXPECT_EQ(next.tokens, cold.tokens);
    if (next.cached == before.cached) break;
    before = std::move(next);
  }
  return before;
}

TEST(Siege, ARollingRestartCostsNoHitAndNoToken) {
  const int turns = how_many(20, 1);
  constexpr std::uint32_t kEngines = 3;
  const Daemon daemon({"--engines", "3", "--kv-cache-memory-bytes", "64M"});
  std::vector<Client> clients;  // not pinned: they move when their engine dies
  for (int i = 0; i < 6; ++i) clients.push_back(daemon.connect());
  const Round cold = play(clients);
  const Round before = settled(clients, cold);
  ASSERT_GT(before.cached, before.prompt / 2);
  int restarted = 0;
  for (std::uint32_t i = 0; i < kEngines * static_cast<std::uint32_t>(turns); ++i) {
    const Json engine = daemon.status()["engines"][i % kEngines];
    const pid_t old = engine["pid"];
    // Kills the engine in the middle of a round, once the engine's requests have begun.
    const ChildProcess killer([&] {
      while (daemon.engine(i % kEngines)["running"] == 0) {
      }
      signal_process(old, SIGKILL);
    });
    do {
      EXPECT_EQ(play(clients).tokens, cold.tokens) << "engine " << i % kEngines;
    } while (is_alive(old));
    ++restarted;
    ASSERT_TRUE(eventually(
        [&] { return daemon.status()["engines"][i % kEngines]["state"] == "serving"; }, kHang));
  }
  const Round after = play(clients);
  EXPECT_EQ(after.tokens, cold.tokens);
  EXPECT_EQ(after.cached, before.cached) << "cached, of " << before.prompt << " prompt tokens";
  std::printf("%d engines restarted under load; cached %lu of %lu prompt tokens before and after\n",
              restarted, after.cached, after.prompt);
  EXPECT_TRUE(daemon.fsck_is_clean());
}

}  // namespace
}  // namespace kvhive::testing
