// The block manager against a model of vLLM's, decision for decision: which blocks each group's
// table has, what is found, freed and evicted, in which order. KVHIVE_STEPS=1000000 for a long run.

#include <gtest/gtest.h>

#include <random>

#include "actors/block_manager/block_manager_state.hpp"
#include "hashing/cache_salt.hpp"
#include "pool/care/fsck.hpp"
#include "tests/pool/model_pool.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/random_steps.hpp"

namespace kvhive::testing {
namespace {

constexpr std::size_t kSize = 3;  // tokens per block
constexpr std::uint32_t kStepTokens = 20;
constexpr std::uint32_t kSequences = 6;  ///< that run at a time, at most

/// vLLM's KVCacheManager with its HybridKVCacheCoordinator, in the simplest way.
class ModelManager {
 public:
  ModelManager(const CacheGroups& groups, std::uint32_t blocks, WindowRetention retention)
      : groups_(groups), retention_(retention), pool_(1, blocks + 1) {}

  struct Sequence {
    std::vector<TokenId> tokens;
    bool has_adapter = false;
    std::size_t prompt = 0;    ///< tokens
    std::size_t junction = 0;  ///< blocks that full attention had in the cache, and not all groups
    std::size_t computed = 0, in_flight = 0;
    std::vector<std::vector<std::uint32_t>> tables{};  ///< 0 = the null block
  };
  std::map<std::uint64_t, Sequence> sequences;

  void finish_step(const std::vector<std::uint64_t>& in_order) {
    for (const std::uint64_t seq : in_order) {
      Sequence& s = sequences.at(seq);
      s.computed += std::exchange(s.in_flight, 0);
    }
  }

  void end(std::uint64_t seq) {
    for (const auto& table : sequences.at(seq).tables) pool_.release(without_nulls(table));
    sequences.erase(seq);
  }

  /// How many blocks the running sequence will lack, once what has passed is freed.
  std::size_t lacking(const Sequence& s, std::size_t tokens) const {
    std::size_t lacking = 0;
    for (const auto& table : s.tables)
      lacking += std::max(blocks_for(s.computed + tokens), table.size()) - table.size();
    return lacking;
  }

  void run(std::uint64_t seq, std::size_t tokens) {
    Sequence& s = sequences.at(seq);
    for (std::size_t g = 0; g < groups_.count; ++g) {
      std::vector<std::uint32_t> passed;
      for (std::size_t i = 0; i < std::min(first(g, s.computed), s.tables[g].size()); ++i)
        if (s.tables[g][i] != 0) passed.push_back(std::exchange(s.tables[g][i], 0));
      pool_.release(passed);
    }
    const std::size_t missing = lacking(s, tokens);
    auto fresh = pool_.allocate(missing).value();
    for (auto& table : s.tables)
      while (table.size() < blocks_for(s.computed + tokens)) {
        table.push_back(fresh.front());
        fresh.erase(fresh.begin());
      }
    fill(s, tokens);
  }

  /// Returns how many tokens need not be computed; nothing if there is no room.
  std::optional<std::size_t> admit(std::uint64_t seq, std::size_t budget, bool is_first) {
    Sequence& s = sequences.at(seq);
    const std::size_t hit = longest((s.tokens.size() - 1) / kSize, s);
    const std::size_t of_first = longest((s.tokens.size() - 1) / kSize, s, true);
    s.junction = of_first > hit ? of_first : 0;
    std::vector<std::uint32_t> found;
    std::size_t in_all = 0, now = 0, idle = 0;
    const std::size_t tokens = std::min(s.tokens.size() - hit * kSize, budget);
    s.tables.assign(groups_.count, std::vector<std::uint32_t>(hit));
    for (std::size_t g = 0; g < groups_.count; ++g) {
      const std::size_t from = first(g, hit * kSize);
      for (std::size_t i = from; i < hit; ++i)
        found.push_back(s.tables[g][i] = pool_.find(key(s, g, i)).value());
      const std::size_t most = groups_.group[g].most_blocks(s.tokens.size(), kStepTokens, kSize);
      in_all += std::max(most, hit) - hit;
      now += blocks_for(hit * kSize + tokens) - from;
    }
    for (const std::uint32_t block : found) idle += pool_.references(block) == 0;
    const std::size_t available = pool_.queue().size() - idle;
    if ((!is_first && in_all > available) || now - found.size() > available) {
      s.tables.clear();
      return std::nullopt;
    }
    pool_.fork(found);
    auto fresh = pool_.allocate(now - found.size()).value();
    for (std::size_t g = 0; g < groups_.count; ++g) {
      s.tables[g].resize(blocks_for(hit * kSize + tokens));
      for (std::size_t i = std::max(hit, first(g, hit * kSize)); i < s.tables[g].size(); ++i) {
        s.tables[g][i] = fresh.front();
        fresh.erase(fresh.begin());
      }
    }
    s.computed = hit * kSize;
    fill(s, tokens);
    return s.computed;
  }

  const std::deque<std::uint32_t>& queue() const { return pool_.queue(); }

 private:
  /// vLLM's cache has a block as soon as it is known what will be in it.
  void fill(Sequence& s, std::size_t tokens) {
    s.in_flight = tokens;
    for (std::size_t g = 0; g < groups_.count; ++g)
      for (std::size_t i = 0; i < (s.computed + tokens) / kSize; ++i) {
        const std::uint32_t block = s.tables[g][i];
        if (block != 0 && !pool_.is_cached(block) && is_kept(s, g, i))
          pool_.publish(block, key(s, g, i));
      }
  }
  /// By definition: whether any sequence that begins at one of the places to keep reads the block.
  bool is_kept(const Sequence& s, std::size_t g, std::size_t i) const {
    if (groups_.group[g].kind != CacheKind::sliding_window || !retention_.interval) return true;
    for (std::size_t end = i + 1; first(g, end * kSize) <= i; ++end) {
      const bool is_multiple = *retention_.interval != 0 && end * kSize % *retention_.interval == 0;
      if (end == (s.prompt - 1) / kSize || end == s.junction || is_multiple) return true;
    }
    return false;
  }
  static std::size_t blocks_for(std::size_t tokens) { return (tokens + kSize - 1) / kSize; }
  std::size_t first(std::size_t g, std::size_t computed) const {
    return groups_.group[g].first_block(computed, kSize);
  }
  static ModelPool::Key key(const Sequence& s, std::size_t g, std::size_t i) {
    ModelPool::Key key{static_cast<TokenId>(g), s.has_adapter};
    key.insert(key.end(), s.tokens.begin(), s.tokens.begin() + std::ptrdiff_t((i + 1) * kSize));
    return key;
  }
  static std::vector<std::uint32_t> without_nulls(std::vector<std::uint32_t> table) {
    std::erase(table, 0u);
    return table;
  }
  /// By definition: of `most` blocks the longest start of which each group has what is read; or
  /// only those groups which are like the first.
  std::size_t longest(std::size_t most, const Sequence& s, bool is_for_first = false) const {
    for (std::size_t hit = most; hit > 0; --hit) {
      bool is_hit = true;
      for (std::size_t g = 0; g < groups_.count && is_hit; ++g)
        if (!is_for_first || groups_.group[g] == groups_.group[0])
          for (std::size_t i = first(g, hit * kSize); i < hit && is_hit; ++i)
            is_hit = pool_.find(key(s, g, i)).has_value();
      if (is_hit) return hit;
    }
    return 0;
  }

  CacheGroups groups_;
  WindowRetention retention_;
  ModelPool pool_;
};

class Duel {
 public:
  Duel(const CacheGroups& groups, std::uint32_t blocks, WindowRetention retention,
       std::uint32_t seed)
      : random_(seed),
        memory_(pool_memory(groups, blocks, seed)),
        manager_(pool_, {.retention = retention, .max_num_batched_tokens = kStepTokens}),
        model_(groups, blocks, retention) {
    occupy(memory_, ProcessSlot{0});
  }

  void step() {
    StepRequest request;
    request.token_budget = between(1, kStepTokens);
    request.ended = std::exchange(dropped_, {});
    model_.finish_step(scheduled_);
    scheduled_.clear();
    StepDone done;
    for (const std::uint64_t seq : running_)
      if (auto& s = model_.sequences.at(seq); s.computed == s.tokens.size()) {
        s.tokens.push_back(token());
        done.sampled.push_back({SeqId{seq}, {s.tokens.back(), 0, {}}});
      }
    manager_.finish_step(done);
    if (!running_.empty() && between(0, 6) == 0) end_one(request);
    while (!running_.empty() && needed(request.token_budget) > model_.queue().size())
      end_one(request);
    if (running_.size() < kSequences && between(0, 1) == 0) add(request);
    for (const std::uint64_t seq : running_) request.running.push_back(SeqId{seq});
    request.victims.assign(request.running.rbegin(), request.running.rend());
    const StepPlan plan = manager_.plan(request);
    ASSERT_TRUE(plan.outcome.preempted.empty());
    ASSERT_TRUE(plan.outcome.rejected.empty());
    follow(request, plan);
    compare(plan);
  }

  void end_all() {
    StepRequest request;
    request.ended = std::exchange(dropped_, {});
    model_.finish_step(scheduled_);
    scheduled_.clear();
    while (!running_.empty()) end_one(request);
    (void)manager_.plan(request);
    ASSERT_EQ(pool_.available(Tier::device), pool_.capacity(Tier::device));
    check();
  }

  void check() const { ASSERT_TRUE(fsck(memory_, Moment::quiescent).violations.empty()); }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t shortages() const { return shortages_; }

 private:
  static PoolMemory pool_memory(const CacheGroups& groups, std::uint32_t blocks,
                                std::uint32_t seed) {
    PoolGeometry geometry = small_geometry(blocks + 1, 0, kSize);
    geometry.models[0].groups = groups;
    return private_pool(geometry, seed);
  }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random_);
  }
  TokenId token() { return static_cast<TokenId>(between(0, 1)); }

  void end_one(StepRequest& request) {
    const std::size_t which = between(0, static_cast<std::uint32_t>(running_.size() - 1));
    const std::uint64_t seq = running_[which];
    running_.erase(running_.begin() + std::ptrdiff_t(which));
    model_.end(seq);
    request.ended.push_back(SeqId{seq});
  }

  /// A bound of what the running sequences will take in this step.
  std::size_t needed(std::size_t budget) const {
    std::size_t blocks = 0;
    for (const std::uint64_t seq : running_) {
      const auto& s = model_.sequences.at(seq);
      const std::size_t tokens = std::min(s.tokens.size() - s.computed, budget);
      blocks += model_.lacking(s, tokens);
      budget -= tokens;
    }
    return blocks;
  }

  /// Long runs of the same tokens, so that starts are shared.
  void add(StepRequest& request) {
    std::vector<TokenId> tokens;
    for (std::size_t length = between(1, 45); tokens.size() < length;)
      tokens.insert(tokens.end(), between(1, 9), token());
    const std::uint64_t seq = ++last_;
    model_.sequences[seq].tokens = tokens;
    model_.sequences[seq].prompt = tokens.size();
    request.added.push_back({SeqId{seq}, std::move(tokens), {}, 0, {}});
    request.added.back().prompt_tokens =
        static_cast<std::uint32_t>(request.added.back().tokens.size());
    if (between(0, 3) == 0) {
      model_.sequences[seq].has_adapter = true;
      request.added.back().salt = start_key("", "poet");
    }
    request.waiting.push_back(SeqId{seq});
  }

  void follow(const StepRequest& request, const StepPlan& plan) {
    std::size_t budget = request.token_budget;
    for (const std::uint64_t seq : running_) {
      auto& s = model_.sequences.at(seq);
      const std::size_t tokens = std::min(s.tokens.size() - s.computed, budget);
      if (tokens == 0) continue;
      model_.run(seq, tokens);
      scheduled_.push_back(seq);
      budget -= tokens;
    }
    for (const SeqId waiting : request.waiting) {
      const auto cached =
          budget == 0 ? std::nullopt : model_.admit(waiting.value, budget, running_.empty());
      ASSERT_EQ(cached.has_value(), !plan.outcome.admitted.empty()) << waiting.value;
      if (!cached) {
        ++shortages_;
        model_.sequences.erase(waiting.value);
        dropped_.push_back(waiting);  // it ends with the next step
        continue;
      }
      ASSERT_EQ(*cached, plan.outcome.admitted[0].cached_tokens);
      hits_ += *cached / kSize;
      running_.push_back(waiting.value);
      scheduled_.push_back(waiting.value);
    }
  }

  void compare(const StepPlan& plan) {
    ASSERT_EQ(plan.work.size(), scheduled_.size());
    for (const ScheduledSequence& work : plan.work) {
      const auto& s = model_.sequences.at(work.seq.value);
      ASSERT_EQ(work.tokens.size(), s.in_flight);
      std::vector<std::uint32_t> expected, got;
      for (const auto& table : s.tables) {
        const std::size_t blocks = (s.computed + s.in_flight + kSize - 1) / kSize;
        expected.insert(expected.end(), table.begin(), table.begin() + std::ptrdiff_t(blocks));
      }
      for (const BlockId block : work.blocks) got.push_back(block.value);
      ASSERT_EQ(got, expected) << "sequence " << work.seq.value;
    }
    std::vector<std::uint32_t> queue;
    for (const BlockId block : pool_.free_queue(Tier::device)) queue.push_back(block.value);
    ASSERT_EQ(queue, std::vector(model_.queue().begin(), model_.queue().end()));
  }

  std::mt19937 random_;
  PoolMemory memory_;
  BlockPool pool_{memory_, ProcessSlot{0}};
  BlockManagerState manager_;
  ModelManager model_;
  std::vector<std::uint64_t> running_, scheduled_;
  std::vector<SeqId> dropped_;
  std::uint64_t last_ = 0, hits_ = 0, shortages_ = 0;
};

struct Mix {
  const char* name;
  std::uint32_t blocks;
  std::vector<CacheGroup> groups;
  WindowRetention retention{};
};
void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.name; }

class GroupsRandom : public ::testing::TestWithParam<Mix> {};

TEST_P(GroupsRandom, DecidesAsVllmsHybridManager) {
  CacheGroups groups;
  groups.count = 0;
  for (const CacheGroup& group : GetParam().groups) groups.group[groups.count++] = group;
  Duel duel(groups, GetParam().blocks, GetParam().retention, 11);
  const std::uint64_t steps = random_steps(6'000);
  for (std::uint64_t step = 0; step < steps; ++step) {
    SCOPED_TRACE(step);
    duel.step();
    if (HasFatalFailure()) return;
    if (step % 1000 == 0) duel.check();
  }
  EXPECT_GT(duel.hits(), steps / 20);
  EXPECT_GT(duel.shortages(), steps / 200);
  duel.end_all();
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, GroupsRandom,
    ::testing::Values(Mix{"Full", 40, {{}}}, Mix{"Window", 28, {{CacheKind::sliding_window, 5}}},
                      Mix{"WideWindow", 40, {{CacheKind::sliding_window, 13}}},
                      Mix{"FullAndWindow", 60, {{}, {CacheKind::sliding_window, 7}}},
                      Mix{"FullAndTwoWindows",
                          90,
                          {{}, {CacheKind::sliding_window, 6}, {CacheKind::sliding_window, 6}}},
                      Mix{"TwoKindsOfWindows",
                          60,
                          {{CacheKind::sliding_window, 4}, {CacheKind::sliding_window, 12}}},
                      Mix{"WindowLatestOnly", 28, {{CacheKind::sliding_window, 5}}, {0}},
                      Mix{"WindowEachThreeBlocks", 32, {{CacheKind::sliding_window, 5}}, {9}},
                      Mix{"FullAndWindowLatestOnly", 60, {{}, {CacheKind::sliding_window, 7}}, {0}},
                      Mix{"FullAndTwoWindowsEachFiveBlocks",
                          90,
                          {{}, {CacheKind::sliding_window, 6}, {CacheKind::sliding_window, 6}},
                          {15}},
                      Mix{"TwoKindsOfWindowsLatestOnly",
                          60,
                          {{CacheKind::sliding_window, 4}, {CacheKind::sliding_window, 12}},
                          {0}},
                      Mix{"FullAndChunks", 60, {{}, {CacheKind::chunked_local, 6}}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvhive::testing
