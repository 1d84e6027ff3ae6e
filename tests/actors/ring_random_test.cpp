// Random workloads on one or more engines over a tiny pool. Requests are preempted, swapped, moved
// between the tiers, shared, aborted and taken over. Every request must get the tokens that the
// oracle computes from its prompt.

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "tests/actors/random_client.hpp"
#include "tests/support/cache_groups.hpp"

namespace kvhive::testing {
namespace {

constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint64_t kSeedsEach = 80;
constexpr std::uint64_t kStepsBetweenChecks = 1000;

enum class Crew { one_engine, two_engines, two_engines_of_which_one_dies, four_engines };
constexpr std::uint32_t kEngines[] = {1, 2, 2, 4};

class RandomRun {
 public:
  /// \param room  times as many blocks as lead to many preemptions; if it is not 1, answers are
  ///              short, so that others can go on from them
  RandomRun(std::uint64_t seed, Crew crew, const RingConfig& config, const CacheGroups& groups = {},
            std::uint32_t room = 1)
      : random_(seed),
        config_(config),
        death_is_due_(crew == Crew::two_engines_of_which_one_dies),
        device_blocks_(between(5, 12) * groups.count * room),
        memory_(oracle_pool(device_blocks_ + 1, between(0, 3) == 0 ? 0 : between(2, 24), groups)) {
    SchedulerConfig& scheduler = config_.scheduler;
    scheduler.max_num_seqs = config_.block_manager.max_num_seqs = between(2, 8);
    scheduler.max_num_batched_tokens = between(scheduler.max_num_seqs, 40);
    config_.block_manager.max_num_batched_tokens = scheduler.max_num_batched_tokens;
    scheduler.max_model_len = static_cast<std::uint32_t>(groups.longest_sequence(
        device_blocks_, scheduler.max_num_batched_tokens, kBlockTokens, 48));
    config_.block_manager.watermark = between(0, 3) == 0 ? 0.1 : 0;
    for (std::uint32_t i = 0; i < kEngines[std::size_t(crew)]; ++i) {
      engines_.push_back(std::make_unique<PlainRing>(memory_, ProcessSlot{i}, config_));
      // Copies seem too expensive at first.
      if (between(0, 3) == 0) engines_.back()->copy_policy().set(between(1, 8), 1);
    }
    RandomClients source(random_);
    clients_.resize(between(8, 32));
    for (std::uint32_t i = 0; i < clients_.size(); ++i)
      clients_[i].request = source.next(i, scheduler.max_model_len);
    if (room == 1) return;
    for (Client& client : clients_) client.request.params.max_tokens = between(1, 12);
  }

  void run() {
    std::size_t submitted = 0;
    for (std::size_t turn = 0; submitted < clients_.size() || !all_is_quiet(); ++turn) {
      ASSERT_LT(turn, 200000u) << "the run does not end";
      if (submitted < clients_.size()) submitted += submit_next(submitted);
      if (submitted > 0 && between(0, 60) == 0) abort(clients_[between(0, submitted - 1)]);
      if (death_is_due_ && submitted > clients_.size() / 2 && between(0, 9) == 0) kill_one();
      ASSERT_TRUE(random_engine().advance());
      if (++steps % kStepsBetweenChecks == 0) check();
    }
  }

  void judge() {
    for (const Client& client : clients_)
      ASSERT_TRUE(client.request.got_what_the_oracle_computes(config_.scheduler.max_model_len));
    ASSERT_FALSE(death_is_due_);
    check();
    const BlockPool& pool = random_engine().pool();
    for (const Tier tier : {Tier::device, Tier::host}) {
      ASSERT_EQ(pool.available(tier), pool.capacity(tier)) << to_string(tier);
      ASSERT_EQ(pool.free_queue(tier).size(), pool.capacity(tier)) << to_string(tier);
    }
  }

  /// Messages that engines have taken, in all runs.
  static inline std::uint64_t steps = 0;

  std::uint64_t sum(CounterName counter) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < engines_.size(); ++i)
      sum += memory_.control().processes[i].counters[counter].load();
    return sum;
  }

 private:
  struct Client {
    RandomClient request;
    PlainRing* engine = nullptr;
    bool was_forked = false;
  };

  void check() const {
    const FsckReport report = fsck(memory_);
    ASSERT_TRUE(report.violations.empty()) << report.violations.front();
  }

  std::uint32_t between(std::size_t low, std::size_t high) {
    return testing::between(random_, low, high);
  }

  PlainRing& random_engine() {
    while (true)
      if (auto& engine = engines_[between(0, engines_.size() - 1)]) return *engine;
  }

  /// Gives a request, with the tokens it has generated as its journal, to a random live engine.
  void submit(Client& client, PlainRing& engine) {
    client.engine = &engine;
    engine.scheduler().submit(client.request.submission());
    engine.scheduler().flush();
  }
  void submit(Client& client) { submit(client, random_engine()); }

  /// Sometimes submits the next client's request, as a fork if there is whom to fork. Returns how
  /// many it has submitted.
  std::size_t submit_next(std::size_t next) {
    if (between(0, 3) != 0) return 0;
    for (std::size_t parent = next; parent-- > 0;)
      if (!clients_[parent].was_forked && fork(clients_[parent], clients_[next])) return 1;
    submit(clients_[next]);
    return 1;
  }

  /// The child goes on from the parent's tokens, in the same engine. False if it cannot.
  bool fork(Client& parent, Client& child) {
    const RandomClient& from = parent.request;
    if (!from.recording->is_finished() || !from.params.will_be_forked || from.is_embedded ||
        !is_alive(parent.engine))
      return false;
    std::vector<TokenId> prompt = from.prompt;
    prompt.insert(prompt.end(), from.recording->tokens.begin(), from.recording->tokens.end());
    if (prompt.size() + 1 >= config_.scheduler.max_model_len) return false;
    child.request.prompt = std::move(prompt);
    child.request.is_embedded = false;
    child.request.domain = from.domain;
    child.request.adapter = from.adapter;
    child.request.params.prompt_logprobs.reset();
    parent.was_forked = true;
    submit(child, *parent.engine);
    return true;
  }
  bool is_alive(const PlainRing* ring) const {
    return std::ranges::any_of(engines_, [&](const auto& engine) { return engine.get() == ring; });
  }

  void abort(Client& client) {
    if (client.request.recording->is_finished()) return;  // the request's engine may be dead
    client.request.is_aborted = true;
    client.engine->scheduler().abort({{client.request.key}, {}});
  }

  /// Ends the first engine as a SIGKILL between two messages would; the others take its requests.
  void kill_one() {
    const PlainRing* const dead = engines_[0].get();
    engines_[0].reset();
    reap(memory_, ProcessSlot{0});
    death_is_due_ = false;
    for (Client& client : clients_)
      if (client.engine == dead && !client.request.recording->is_finished()) {
        client.request.was_taken_over = true;
        submit(client);
      }
  }

  bool all_is_quiet() const {
    for (const auto& engine : engines_)
      if (engine != nullptr && !engine->is_quiet()) return false;
    return true;
  }

  std::mt19937_64 random_;
  RingConfig config_;
  bool death_is_due_;
  std::uint32_t device_blocks_;
  PoolMemory memory_;
  std::vector<std::unique_ptr<PlainRing>> engines_;
  std::vector<Client> clients_;
};

/// Block by block, and with a clock of its own: a millisecond passes whenever it is looked at.
void use_single_flight(BlockManagerConfig& config, bool on) {
  config.single_flight = on;
  config.stretch = {1, 1};
  config.clock = [now = std::uint64_t{0}]() mutable { return now += 1'000'000; };
}

/// The oracle's tokens follow no pattern: few guesses are right. Without guesses, most plan ahead.
void use_guesses(RingConfig& config, std::uint64_t seed) {
  config.scheduler.lookup = {.drafts = seed % 3 == 0 ? 3u : 0, .longest = 2, .shortest = 1};
  config.block_manager.async_scheduling = seed % 3 != 0 && seed % 5 != 0;
}

/// All blocks of windows stay in the cache, or few.
void use_retention(BlockManagerConfig& config, std::uint64_t seed) {
  const std::optional<std::uint32_t> intervals[] = {std::nullopt, 0, 8};
  config.retention.interval = intervals[seed % 3];
}

using Case = std::tuple<PreemptionMode, SchedulingPolicy, bool, Crew>;

class RingRandom : public ::testing::TestWithParam<Case> {};

TEST_P(RingRandom, EveryRequestGetsTheOraclesTokensAndNoBlockIsLost) {
  const auto [mode, policy, prefix_caching, crew] = GetParam();
  RingConfig config;
  config.scheduler.policy = policy;
  config.block_manager.preemption = mode;
  config.block_manager.prefix_caching = prefix_caching;
  std::uint64_t recomputes = 0, swaps = 0, hits = 0, demoted = 0, promoted = 0, waits = 0,
                drafts = 0, right_drafts = 0, ahead = 0, in_vain = 0;
  for (std::uint64_t seed = 1; seed <= kSeedsEach; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    use_single_flight(config.block_manager, seed % 2 == 0);
    use_guesses(config, seed);
    RandomRun run(seed, crew, config);
    run.run();
    if (HasFatalFailure()) return;
    run.judge();
    if (HasFatalFailure()) return;
    recomputes += run.sum("preemptions_recompute");
    swaps += run.sum("preemptions_swap");
    hits += run.sum("hit_blocks");
    demoted += run.sum("demoted_blocks");
    promoted += run.sum("promoted_blocks");
    waits += run.sum("single_flight_waits");
    drafts += run.sum("draft_tokens");
    right_drafts += run.sum("accepted_draft_tokens");
    ahead += run.sum("steps_ahead");
    in_vain += run.sum("ended_rows");
  }
  // Fewer events would mean that the workload tested little.
  EXPECT_GT(mode == PreemptionMode::swap ? swaps : recomputes, 200u);
  EXPECT_EQ(hits > 0, prefix_caching);
  EXPECT_EQ(demoted > 500, prefix_caching) << demoted;
  EXPECT_EQ(promoted > 50, prefix_caching) << promoted;
  if (crew == Crew::two_engines || crew == Crew::four_engines) {
    EXPECT_EQ(waits > 0, prefix_caching) << waits;
  }
  EXPECT_GT(drafts, 1000u);
  EXPECT_GT(right_drafts, 20u);
  EXPECT_GT(ahead, 500u);
  EXPECT_GT(in_vain, 10u);
  EXPECT_EQ(swaps > 0, mode == PreemptionMode::swap);
  EXPECT_GT(recomputes, 0u);  // in swap mode, when the host tier is full
  RecordProperty("recomputes", std::to_string(recomputes));
  RecordProperty("swaps", std::to_string(swaps));
  RecordProperty("demoted", std::to_string(demoted));
  RecordProperty("promoted", std::to_string(promoted));
}

/// Says how much was tried, whatever part of it ran.
class StepCount : public ::testing::Environment {
 public:
  void TearDown() override {
    if (RandomRun::steps != 0)
      std::printf("%llu steps of engines, the pool checked after each %llu of them\n",
                  static_cast<unsigned long long>(RandomRun::steps),
                  static_cast<unsigned long long>(kStepsBetweenChecks));
  }
};
const auto* const kStepCount = ::testing::AddGlobalTestEnvironment(new StepCount);

constexpr const char* kCrews[] = {"One", "Two", "TwoWithADeath", "Four"};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto [mode, policy, prefix_caching, crew] = info.param;
  return std::string(mode == PreemptionMode::swap ? "Swap" : "Recompute") +
         (policy == SchedulingPolicy::fcfs ? "Fcfs" : "Priority") +
         (prefix_caching ? "Cached" : "Uncached") + kCrews[static_cast<std::size_t>(crew)];
}

INSTANTIATE_TEST_SUITE_P(
    All, RingRandom,
    ::testing::Combine(::testing::Values(PreemptionMode::recompute, PreemptionMode::swap),
                       ::testing::Values(SchedulingPolicy::fcfs, SchedulingPolicy::priority),
                       ::testing::Values(true, false),
                       ::testing::Values(Crew::one_engine, Crew::two_engines,
                                         Crew::two_engines_of_which_one_dies, Crew::four_engines)),
    name_of);

// -- several cache groups -------------------------------------------------------------------------

struct Mix {
  const char* name;
  CacheGroups groups;
};
/// Spans of less than a block, of whole blocks, and others; the oracle must see the token before in
/// one of the groups.
const Mix kMixes[] = {{"Window", groups_of({window(6)})},
                      {"WindowOfBlocks", groups_of({window(9)})},
                      {"SmallWindow", groups_of({window(2)})},
                      {"FullAndWindow", groups_of({kFull, window(7)})},
                      {"TwoWindowsAndFull", groups_of({window(5), window(12), kFull})},
                      {"FullAndChunks", groups_of({kFull, chunks(8)})},
                      {"OddChunksAndWindow", groups_of({chunks(10), window(6)})},
                      {"TwoFull", groups_of({kFull, kFull})}};

using MixCase = std::tuple<std::size_t, PreemptionMode, bool, Crew>;

class RingRandomGroups : public ::testing::TestWithParam<MixCase> {};

TEST_P(RingRandomGroups, EveryRequestGetsTheOraclesTokensAndNoBlockIsLost) {
  const auto [mix, mode, prefix_caching, crew] = GetParam();
  RingConfig config;
  config.block_manager.preemption = mode;
  config.block_manager.prefix_caching = prefix_caching;
  std::uint64_t preempted = 0, hits = 0, demoted = 0, promoted = 0, waits = 0;
  for (std::uint64_t seed = 1; seed <= kSeedsEach; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    use_single_flight(config.block_manager, seed % 2 == 0);
    use_guesses(config, seed);
    use_retention(config.block_manager, seed);
    RandomRun run(seed, crew, config, kMixes[mix].groups);
    run.run();
    if (HasFatalFailure()) return;
    run.judge();
    if (HasFatalFailure()) return;
    preempted += run.sum("preemptions_recompute") + run.sum("preemptions_swap");
    hits += run.sum("hit_blocks");
    demoted += run.sum("demoted_blocks");
    promoted += run.sum("promoted_blocks");
    waits += run.sum("single_flight_waits");
  }
  EXPECT_GT(preempted, 20u);
  EXPECT_EQ(hits > 20, prefix_caching) << hits;
  EXPECT_EQ(demoted > 20, prefix_caching) << demoted;
  EXPECT_EQ(promoted > 5, prefix_caching) << promoted;
  EXPECT_TRUE(prefix_caching || waits == 0) << waits;
}

std::string name_of_mix(const ::testing::TestParamInfo<MixCase>& info) {
  const auto [mix, mode, prefix_caching, crew] = info.param;
  return std::string(kMixes[mix].name) + (mode == PreemptionMode::swap ? "Swap" : "Recompute") +
         (prefix_caching ? "Cached" : "Uncached") + kCrews[static_cast<std::size_t>(crew)];
}

/// Where there is room, tails stay until they are forked.
class RingRandomForks : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RingRandomForks, EveryRequestGetsTheOraclesTokensAndNoBlockIsLost) {
  std::uint64_t forked = 0, preempted = 0;
  for (std::uint64_t seed = 1; seed <= 2 * kSeedsEach; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RingConfig config;
    config.block_manager.preemption =
        seed % 4 < 2 ? PreemptionMode::swap : PreemptionMode::recompute;
    use_single_flight(config.block_manager, seed % 2 == 0);
    use_guesses(config, seed);
    use_retention(config.block_manager, seed);
    const Crew crew = seed % 3 == 0 ? Crew::two_engines_of_which_one_dies : Crew::one_engine;
    RandomRun run(seed, crew, config, kMixes[GetParam()].groups, seed % 4 == 0 ? 4 : 2);
    run.run();
    if (HasFatalFailure()) return;
    run.judge();
    if (HasFatalFailure()) return;
    forked += run.sum("forked_tokens");
    preempted += run.sum("preemptions_recompute") + run.sum("preemptions_swap");
  }
  EXPECT_GT(forked, 100u);
  EXPECT_GT(preempted, 3u);
  RecordProperty("forked", std::to_string(forked));
}

INSTANTIATE_TEST_SUITE_P(All, RingRandomForks, ::testing::Range<std::size_t>(0, std::size(kMixes)),
                         [](const auto& mix) { return std::string(kMixes[mix.param].name); });

INSTANTIATE_TEST_SUITE_P(
    All, RingRandomGroups,
    ::testing::Combine(::testing::Range<std::size_t>(0, std::size(kMixes)),
                       ::testing::Values(PreemptionMode::recompute, PreemptionMode::swap),
                       ::testing::Values(true, false),
                       ::testing::Values(Crew::one_engine, Crew::two_engines_of_which_one_dies,
                                         Crew::four_engines)),
    name_of_mix);

}  // namespace
}  // namespace kvhive::testing
