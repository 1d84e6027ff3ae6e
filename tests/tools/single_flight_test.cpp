// A prompt that all engines get at once is computed by one of them, also when that one dies or is
// stopped half-way.

#include "base/stop_watch.hpp"
#include "tests/tools/whole_answers.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kEngines = 4;
constexpr std::size_t kPromptTokens = 3'500;

class SingleFlightOfEngines : public ::testing::Test {
 protected:
  /// Small steps, so that a prompt can be interrupted.
  static std::vector<std::string> flags(std::vector<std::string> more = {}) {
    std::vector<std::string> all = {
        "--engines",      "4", "--kv-cache-memory-bytes", "64M", "--max-num-batched-tokens", "64",
        "--max-num-seqs", "64"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static GenerateRequest long_request() {
    GenerateRequest request = request_of("", 8);
    for (std::size_t i = 0; i < kPromptTokens; ++i)
      request.prompt_tokens.push_back(static_cast<TokenId>(i * i % 1'999));
    return request;
  }
  static const Tokens& undisturbed() {
    static const Tokens tokens = [] {
      const Daemon alone({"--kv-cache-memory-bytes", "64M"});
      return tokens_of({*alone.connect().generate(long_request())});
    }();
    return tokens;
  }

  void connect(const Daemon& daemon) {
    for (std::uint32_t engine = 0; engine < kEngines; ++engine)
      clients_.push_back(daemon.connect(engine));
  }
  RequestId submit(std::uint32_t engine) { return *clients_[engine].submit(long_request()); }
  Tokens answer(std::uint32_t engine, RequestId id) {
    Progress whole = *clients_[engine].read(id);
    while (whole.reason == Finish::none) {
      EXPECT_TRUE(clients_[engine].wait());
      Progress news = *clients_[engine].read(id);
      news.tokens.insert(news.tokens.begin(), whole.tokens.begin(), whole.tokens.end());
      whole = std::move(news);
    }
    return tokens_of({whole});
  }

  static std::uint64_t computed(const PoolMemory& pool) {
    return counted(pool, "prompt_tokens") - counted(pool, "cached_tokens");
  }
  /// Lets engine 0 begin the prompt, and the others wait for it.
  void begin(const Daemon& daemon, const PoolMemory& pool) {
    connect(daemon);
    ids_.push_back(submit(0));
    ASSERT_TRUE(eventually([&] { return counted(pool, "running") == 1; }));
    for (std::uint32_t engine = 1; engine < kEngines; ++engine) ids_.push_back(submit(engine));
  }

  std::vector<Client> clients_;
  std::vector<RequestId> ids_;
};

/// In steps of the usual size: a request waits a few seconds at most, and a loaded machine takes as
/// long for many small steps.
TEST_F(SingleFlightOfEngines, ComputeAPromptThatComesToAllAtOnceOnce) {
  const Daemon daemon({"--engines", "4", "--kv-cache-memory-bytes", "64M"});
  const PoolMemory pool = daemon.pool();
  connect(daemon);
  for (std::uint32_t engine = 0; engine < kEngines; ++engine) ids_.push_back(submit(engine));
  for (std::uint32_t engine = 0; engine < kEngines; ++engine)
    EXPECT_EQ(answer(engine, ids_[engine]), undisturbed());
  std::printf("4 engines, 4 times the same %zu tokens: %zu computed, %zu requests waited\n",
              kPromptTokens, std::size_t(computed(pool)),
              std::size_t(counted(pool, "single_flight_waits")));
  EXPECT_EQ(computed(pool), kPromptTokens + (kEngines - 1) * (kPromptTokens % 16));
}

TEST_F(SingleFlightOfEngines, AreNotHeldUpByADeath) {
  const Daemon daemon(flags());
  const PoolMemory pool = daemon.pool();
  const pid_t first = daemon.engine(0)["pid"].get<pid_t>();
  begin(daemon, pool);
  ASSERT_TRUE(eventually([&] { return counted(pool, "single_flight_waits") == kEngines - 1; }));
  signal_process(first, SIGKILL);
  for (std::uint32_t engine = 0; engine < kEngines; ++engine)
    EXPECT_EQ(answer(engine, ids_[engine]), undisturbed());
  EXPECT_TRUE(daemon.fsck_is_clean());
}

/// How long they wait for it, tests/actors/single_flight_test.cpp proves.
TEST_F(SingleFlightOfEngines, AnswerWhileTheOneTheyWaitForIsStopped) {
  const Daemon daemon(flags());
  const PoolMemory pool = daemon.pool();
  const pid_t first = daemon.engine(0)["pid"].get<pid_t>();
  begin(daemon, pool);
  ASSERT_TRUE(eventually([&] { return counted(pool, "single_flight_waits") != 0; }));
  signal_process(first, SIGSTOP);
  const StopWatch watch;
  for (std::uint32_t engine = 1; engine < kEngines; ++engine)
    EXPECT_EQ(answer(engine, ids_[engine]), undisturbed());
  std::printf(
      "the engine that computes is stopped half-way: all others have answered %.2f s later\n",
      watch.seconds());
  EXPECT_EQ(state_of(first), 'T');
  EXPECT_EQ(clients_[0].read(ids_[0])->reason, Finish::none);
  signal_process(first, SIGCONT);
  EXPECT_EQ(answer(0, ids_[0]), undisturbed());
  // Only one of those that had waited has computed what the stopped one had not.
  EXPECT_LE(computed(pool), 2 * kPromptTokens + (kEngines - 2) * (kPromptTokens % 16));
}

TEST_F(SingleFlightOfEngines, ComputeItEachWithoutTheOption) {
  const Daemon daemon(flags({"--single-flight", "false"}));
  const PoolMemory pool = daemon.pool();
  begin(daemon, pool);
  for (std::uint32_t engine = 0; engine < kEngines; ++engine)
    EXPECT_EQ(answer(engine, ids_[engine]), undisturbed());
  EXPECT_EQ(counted(pool, "single_flight_waits"), 0u);
}

}  // namespace
}  // namespace kvhive::testing
