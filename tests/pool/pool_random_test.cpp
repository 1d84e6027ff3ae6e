// BlockPool against the model of vLLM's pool, operation by operation. KVHIVE_STEPS=1000000 for a
// long run.

#include <gmock/gmock.h>

#include <random>

#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "tests/pool/model_pool.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/random_steps.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

struct Scenario {
  std::uint32_t seed;
  std::uint32_t device_blocks;
  std::uint32_t host_blocks;
  std::uint32_t tokens_per_block;
  std::uint32_t most_blocks;  ///< of one prompt, at most
  std::uint32_t vocabulary;   ///< few tokens: many shared prefixes and duplicates
  EvictionPolicy policy = EvictionPolicy::lru;
};

std::ostream& operator<<(std::ostream& out, const Scenario& s) {
  return out << "seed " << s.seed << ", " << s.device_blocks << "+" << s.host_blocks
             << " blocks of " << s.tokens_per_block << ", " << to_string(s.policy);
}

/// Runs the same operations on one tier of the pool and on its model. A sequence always holds its
/// whole prefix, as vLLM's requests do.
class Duet {
 public:
  Duet(BlockPool& pool, Tier tier, const Scenario& scenario, std::mt19937& random,
       const std::shared_ptr<ModelPool::Contents>& contents)
      : pool_(pool),
        tier_(tier),
        scenario_(scenario),
        random_(random),
        model_(make_model(contents)) {}

  void step() {
    // In phases of many hits and no evictions, new stamps overwrite the ring of hints.
    if (--phase_left_ <= 0) {
      phase_left_ = int(below(1500));
      is_admitting_ = below(3) != 0;
    }
    const auto dice = below(100);
    if (dice < 45 && is_admitting_)
      admit();
    else if (dice < 55)
      visit();
    else if (dice < 60)
      grow();
    else if (dice < 65)
      fork();
    else if (!sequences_.empty())
      finish();
    else
      visit();
  }

  void compare() {
    const auto queue = numbers(pool_.free_queue(tier_));
    ASSERT_EQ(queue, std::vector(model_.queue().begin(), model_.queue().end()));
    ASSERT_EQ(pool_.available(tier_), queue.size());
  }

  void finish_all() {
    while (!sequences_.empty()) finish();
  }

  std::uint64_t hits() const { return hits_; }
  std::uint64_t shortages() const { return shortages_; }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;  ///< tokens of the published blocks
    DomainId domain;
    Prefix end;
    std::vector<BlockId> blocks;  ///< published ones first
    std::size_t published = 0;
  };

  ModelPool make_model(const std::shared_ptr<ModelPool::Contents>& contents) const {
    const std::uint32_t device = scenario_.device_blocks;
    return tier_ == Tier::device
               ? ModelPool(1, device, scenario_.policy, contents)
               : ModelPool(device, device + scenario_.host_blocks, scenario_.policy, contents);
  }
  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  /// A prompt whose blocks are drawn from a few different ones, so that prefixes are shared.
  Prompt draw_prompt() {
    const std::size_t blocks = 1 + below(scenario_.most_blocks);
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto token = static_cast<TokenId>(below(scenario_.vocabulary));
      tokens.insert(tokens.end(), scenario_.tokens_per_block, token);
    }
    return Prompt(pool_, std::move(tokens), DomainId{std::uint16_t(below(2))});
  }

  std::vector<ModelPool::Key> keys_of(DomainId domain, std::span<const TokenId> tokens) const {
    std::vector<ModelPool::Key> keys;
    ModelPool::Key key{domain.value};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      key.push_back(tokens[i]);
      if ((i + 1) % scenario_.tokens_per_block == 0) keys.push_back(key);
    }
    return keys;
  }

  PrefixHit match(const Prompt& prompt) {
    PrefixHit hit = match_all(pool_, prompt, tier_);
    const auto expected = model_.match(keys_of(prompt.domain, prompt.tokens));
    EXPECT_EQ(numbers(hit.blocks), expected);
    hits_ += hit.blocks.size();
    return hit;
  }

  std::optional<std::vector<BlockId>> allocate(std::size_t count, DomainId domain) {
    auto taken = pool_.allocate(tier_, count, domain);
    const auto expected = model_.allocate(count);
    EXPECT_EQ(taken.has_value(), expected.has_value());
    if (!taken || !expected) return std::nullopt;
    EXPECT_EQ(numbers(*taken), *expected);
    return *taken;
  }

  void publish(Sequence& sequence, std::size_t count, std::span<const Hash128> names,
               std::span<const TokenId> tokens) {
    const auto blocks = std::span(sequence.blocks).subspan(sequence.published, count);
    sequence.end = pool_.publish(sequence.end, blocks, names, tokens);
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    const auto keys = keys_of(sequence.domain, sequence.tokens);
    for (std::size_t i = sequence.published; i < sequence.published + count; ++i)
      model_.publish(sequence.blocks[i].value, keys[i],
                     i == 0 ? 0 : model_.uid_of(sequence.blocks[i - 1].value));
    sequence.published += count;
  }

  /// A new request: matches, allocates, publishes some blocks. If the pool has too few, cancels.
  void admit() {
    const Prompt prompt = draw_prompt();
    const ModelPool before = model_;
    const PrefixHit hit = match(prompt);
    const std::size_t missing = prompt.full_blocks() - hit.blocks.size();
    const auto fresh = allocate(missing + below(3), prompt.domain);
    if (!fresh) {
      ++shortages_;
      cancel(hit, before);
      return;
    }
    Sequence sequence{{}, prompt.domain, hit.end, hit.blocks, hit.blocks.size()};
    const auto known = prompt.of_blocks(0, hit.blocks.size());
    sequence.tokens.assign(known.begin(), known.end());
    sequence.blocks.insert(sequence.blocks.end(), fresh->begin(), fresh->end());
    const std::size_t now = below(4) == 0 ? below(std::uint32_t(missing) + 1) : missing;
    publish(sequence, now, prompt.names(hit.blocks.size(), now),
            prompt.of_blocks(hit.blocks.size(), now));
    sequences_.push_back(std::move(sequence));
  }

  /// What was hit stays so.
  void cancel(const PrefixHit& hit, const ModelPool& before) {
    pool_.cancel(hit);
    model_ = before;
    model_.mark(numbers(hit.blocks));
  }

  /// A hit that is cancelled or released at once.
  void visit() {
    const Prompt prompt = draw_prompt();
    const ModelPool before = model_;
    const PrefixHit hit = match(prompt);
    if (below(2) == 0) {
      cancel(hit, before);
    } else {
      pool_.release(hit.blocks);
      model_.release(numbers(hit.blocks));
    }
  }

  /// Publishes a sequence's next block, after allocating one if it has no unpublished block.
  void grow() {
    if (sequences_.empty()) return;
    Sequence& sequence = sequences_[below(std::uint32_t(sequences_.size()))];
    if (sequence.published == sequence.blocks.size()) {
      const auto fresh = allocate(1, sequence.domain);
      if (!fresh) return;
      sequence.blocks.push_back(fresh->front());
    }
    if (pool_.references(sequence.blocks[sequence.published]) != 1) return;  // forked
    const std::vector<TokenId> tokens(scenario_.tokens_per_block,
                                      static_cast<TokenId>(below(scenario_.vocabulary)));
    const Prompt whole(pool_, joined(sequence.tokens, tokens), sequence.domain);
    publish(sequence, 1, whole.names(sequence.published, 1), tokens);
  }

  void fork() {
    if (sequences_.empty()) return;
    const Sequence copy = sequences_[below(std::uint32_t(sequences_.size()))];
    pool_.fork(copy.blocks);
    model_.fork(numbers(copy.blocks));
    sequences_.push_back(copy);
  }

  void finish() {
    std::swap(sequences_[below(std::uint32_t(sequences_.size()))], sequences_.back());
    pool_.release(sequences_.back().blocks);
    model_.release(numbers(sequences_.back().blocks));
    sequences_.pop_back();
  }

  BlockPool& pool_;
  Tier tier_;
  const Scenario& scenario_;
  std::mt19937& random_;
  ModelPool model_;
  std::vector<Sequence> sequences_;
  int phase_left_ = 0;
  bool is_admitting_ = true;
  std::uint64_t hits_ = 0;
  std::uint64_t shortages_ = 0;
};

class PoolRandom : public ::testing::TestWithParam<Scenario> {};

TEST_P(PoolRandom, AgreesWithTheModelOfVllm) {
  const Scenario scenario = GetParam();
  PoolGeometry geometry =
      small_geometry(scenario.device_blocks, scenario.host_blocks, scenario.tokens_per_block);
  geometry.eviction_policy = scenario.policy;
  const PoolMemory memory = private_pool(geometry, scenario.seed);
  occupy(memory, ProcessSlot{3});
  BlockPool pool(memory, ProcessSlot{3});
  std::mt19937 random(scenario.seed);
  const auto contents = std::make_shared<ModelPool::Contents>();
  Duet device(pool, Tier::device, scenario, random, contents);
  Duet host(pool, Tier::host, scenario, random, contents);

  const std::uint64_t operations = random_steps(kUnderSanitizer ? 6'000 : 30'000);
  for (std::uint64_t operation = 0; operation < operations; ++operation) {
    SCOPED_TRACE(operation);
    device.step();
    if (scenario.host_blocks != 0) host.step();
    device.compare();
    if (scenario.host_blocks != 0) host.compare();
    if (operation % 1000 == 0) {
      ASSERT_THAT(fsck(memory, Moment::quiescent).violations, ::testing::IsEmpty());
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(device.hits(), operations / 30);
  EXPECT_GT(device.shortages(), operations / 3000);

  const bool has_spared = pool.counters()["spared_blocks"].load() != 0;
  EXPECT_EQ(has_spared, scenario.policy == EvictionPolicy::second_chance);
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, ::testing::IsEmpty());
  device.finish_all();
  host.finish_all();
  EXPECT_EQ(pool.available(Tier::device), pool.capacity(Tier::device));
  EXPECT_EQ(pool.available(Tier::host), pool.capacity(Tier::host));
}

std::vector<Scenario> of_both_policies() {
  std::vector<Scenario> all = {{1, 11, 0, 4, 4, 3},     //
                               {2, 30, 0, 1, 6, 3},     //
                               {3, 100, 0, 16, 8, 3},   //
                               {4, 65, 20, 3, 5, 2},    //
                               {5, 130, 70, 2, 12, 3},  //
                               {6, 3, 2, 5, 2, 2},      //
                               {7, 64, 64, 4, 6, 4},    //
                               {8, 257, 0, 4, 9, 3}};
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    all.push_back(all[i]);
    all.back().policy = EvictionPolicy::second_chance;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, PoolRandom, ::testing::ValuesIn(of_both_policies()));

}  // namespace
}  // namespace kvhive::testing
