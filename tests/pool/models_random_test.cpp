// Several models in one pool: random operations of processes that take turns, each with its own
// model, against a model of the pool that is written in the simplest way.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <random>

#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "pool/processes/process_slot.hpp"
#include "pool/scrub.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

/// Three models: full attention in 4 tokens a block; full attention and a window in 8; a window and
/// chunks in 2.
PoolGeometry three_models(std::uint32_t blocks) {
  PoolGeometry geometry = small_geometry(blocks + 1);
  const ModelCache first = geometry.models[0];
  geometry.model_count = 3;
  geometry.models[1] = geometry.models[2] = first;
  geometry.models[1].tokens_per_block = 8;
  geometry.models[1].groups = {2, 1, {{{}, {CacheKind::sliding_window, 12}}}};
  geometry.models[2].tokens_per_block = 2;
  geometry.models[2].groups = {
      2, 3, {{{CacheKind::sliding_window, 5}, {CacheKind::chunked_local, 4}}}};
  return geometry;
}

/// Which content is where, and in which order idle blocks go.
class SimplePool {
 public:
  /// A content by the one before it (or all tokens before it), and its own tokens.
  using Key = std::vector<std::int64_t>;
  struct Block {
    std::uint32_t references = 0;
    std::size_t model = 0;
    std::optional<Key> key;
  };

  explicit SimplePool(const PoolGeometry& geometry)
      : minimums_(geometry.model_minimums),
        blocks_(geometry.device_blocks),
        free_(geometry.device_blocks - 1) {}

  /// The first block published with this key; 0 = none.
  std::uint32_t find(const Key& key) const {
    const auto found = contents_.find(key);
    return found == contents_.end() ? 0 : found->second.blocks.front();
  }
  std::int64_t identity(const Key& key) const { return contents_.at(key).identity; }
  std::size_t copies(const Key& key) const {
    const auto found = contents_.find(key);
    return found == contents_.end() ? 0 : found->second.blocks.size();
  }

  std::size_t available(std::size_t model) const {
    std::size_t total = free_ + idle_.size();
    for (std::size_t other = 0; other < minimums_.size(); ++other) {
      if (other == model || minimums_[other] == 0) continue;
      const auto [all, idle] = count(other);
      const std::size_t held = all - idle;
      const std::size_t protects = minimums_[other] - std::min<std::size_t>(minimums_[other], held);
      total -= std::min(total, std::min(idle, protects));
    }
    return total;
  }

  /// Which blocks an allocation of so many evicts, the oldest first.
  std::vector<std::uint32_t> victims(std::size_t model, std::size_t wanted) const {
    std::array<std::size_t, kMostModels> most;
    for (std::size_t m = 0; m < most.size(); ++m) {
      const std::size_t all = count(m).first + (m == model ? wanted : 0);
      most[m] = minimums_[m] == 0 ? wanted : all - std::min<std::size_t>(all, minimums_[m]);
    }
    std::vector<std::uint32_t> gone;
    for (const std::uint32_t id : idle_) {
      if (gone.size() == wanted_from_idle(wanted)) break;
      std::size_t& left = most[blocks_[id].model];
      if (left == 0) continue;
      --left;
      gone.push_back(id);
    }
    // A model's minimum protects it from others, not from itself.
    for (const std::uint32_t id : idle_)
      if (gone.size() < wanted_from_idle(wanted) && blocks_[id].model == model &&
          std::ranges::find(gone, id) == gone.end())
        gone.push_back(id);
    return gone;
  }

  void take(std::size_t model, const std::vector<std::uint32_t>& taken,
            const std::vector<std::uint32_t>& evicted) {
    for (const std::uint32_t id : evicted) {
      idle_.remove(id);
      auto content = contents_.find(*blocks_[id].key);
      std::erase(content->second.blocks, id);
      if (content->second.blocks.empty()) contents_.erase(content);
    }
    free_ -= taken.size() - evicted.size();
    for (const std::uint32_t id : taken) blocks_[id] = {1, model, std::nullopt};
  }

  void publish(std::uint32_t id, const Key& key) {
    blocks_[id].key = key;
    Content& content = contents_[key];
    if (content.blocks.empty()) content.identity = ++last_identity_;
    content.blocks.push_back(id);
  }

  void pin(std::uint32_t id) {
    if (blocks_[id].references++ == 0) idle_.remove(id);
  }

  void release(const std::vector<std::uint32_t>& ids) {
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (--blocks_[*id].references != 0) continue;
      if (blocks_[*id].key)
        idle_.push_back(*id);
      else
        ++free_;
    }
  }

  std::vector<std::uint32_t> idle() const { return {idle_.begin(), idle_.end()}; }
  std::size_t free() const { return free_; }

 private:
  struct Content {
    std::int64_t identity = 0;  ///< as long as any block has it
    std::vector<std::uint32_t> blocks;
  };
  std::size_t wanted_from_idle(std::size_t wanted) const {
    return wanted - std::min(wanted, free_);
  }
  /// All blocks of a model, and those of them that are idle.
  std::pair<std::size_t, std::size_t> count(std::size_t model) const {
    std::size_t all = 0, idle = 0;
    for (const Block& block : blocks_) {
      if (block.model != model || (block.references == 0 && !block.key)) continue;
      ++all;
      idle += block.references == 0;
    }
    return {all, idle};
  }

  std::array<std::uint32_t, kMostModels> minimums_;
  std::vector<Block> blocks_;
  std::size_t free_;
  std::list<std::uint32_t> idle_;  ///< the next to be evicted first
  std::map<Key, Content> contents_;
  std::int64_t last_identity_ = 0;
};

class Process {
 public:
  Process(const PoolMemory& memory, std::uint32_t slot, std::uint8_t model, SimplePool& simple,
          std::mt19937& random)
      : geometry_(memory.geometry()),
        cache_(geometry_.models[model]),
        model_(model),
        pool_(memory, ProcessSlot{slot}, Scrub::on_domain_change, {}, ModelId{model}),
        simple_(simple),
        random_(random) {}

  void step() {
    if (below(100) < 55)
      run_request();
    else if (!held_.empty())
      finish();
  }
  void finish_all() {
    while (!held_.empty()) finish();
  }
  BlockPool& pool() { return pool_; }
  std::uint64_t hits() const { return hits_; }

 private:
  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  /// The key of the i-th block in a group: chained to the identity before it, or to all tokens.
  SimplePool::Key key(GroupId group, std::uint16_t domain, std::span<const TokenId> tokens,
                      std::size_t i, std::int64_t parent) const {
    const std::size_t size = cache_.tokens_per_block;
    SimplePool::Key key = {group.value, domain, parent};
    const std::size_t from = cache_.groups.is_chained(group) ? i * size : 0;
    key.insert(key.end(), tokens.begin() + std::ptrdiff_t(from),
               tokens.begin() + std::ptrdiff_t((i + 1) * size));
    return key;
  }

  /// A prompt in one of the model's groups: matches what is there, computes and publishes the rest.
  void run_request() {
    const GroupId group = cache_.groups.id(below(cache_.groups.count));
    const auto domain = static_cast<std::uint16_t>(below(2));
    const std::size_t size = cache_.tokens_per_block, blocks = 1 + below(5);
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < blocks; ++i)
      tokens.insert(tokens.end(), size, static_cast<TokenId>(below(3)));
    SequenceNames names(cache_.groups, DomainId{domain}, size);
    names.extend(pool_.hasher(), tokens);

    const bool is_chained = cache_.groups.is_chained(group);
    std::vector<BlockId> table;
    std::vector<std::uint32_t> expected;
    PrefixHit hit;
    if (is_chained) {
      hit = find(group, domain, 0, blocks, names, tokens);
      for (std::int64_t parent = -1; expected.size() < blocks;) {
        const auto one = key(group, domain, tokens, expected.size(), parent);
        if (simple_.find(one) == 0) break;
        expected.push_back(simple_.find(one));
        parent = simple_.identity(one);
      }
    } else {
      const std::size_t place = below(static_cast<std::uint32_t>(blocks));
      hit = find(group, domain, static_cast<std::uint32_t>(place), 1, names, tokens);
      if (const std::uint32_t id = simple_.find(key(group, domain, tokens, place, -1)); id != 0)
        expected.push_back(id);
    }
    ASSERT_EQ(numbers(hit.blocks), expected);
    hits_ += expected.size();
    if (below(8) == 0) return pool_.cancel(hit);  // it keeps its place in the order
    const SimplePool before = simple_;
    for (const std::uint32_t id : expected) simple_.pin(id);
    table = hit.blocks;

    const std::size_t missing = is_chained ? blocks - expected.size() : blocks;
    std::vector<Evicted> evicted;
    const std::size_t room = simple_.available(model_);
    ASSERT_EQ(pool_.available(Tier::device, DomainId{domain}), room);
    const auto victims = simple_.victims(model_, missing);
    const auto fresh = pool_.allocate(Tier::device, missing, DomainId{domain}, &evicted);
    ASSERT_EQ(fresh.has_value(), missing <= room);
    if (!fresh) {
      pool_.cancel(hit);
      simple_ = before;
      return;
    }
    std::vector<std::uint32_t> gone;
    for (const Evicted& one : evicted) {
      gone.push_back(one.block.value);
      if (one.domain != DomainId{domain})
        change_domain(pool_.memory(), one.block, DomainId{domain});
    }
    std::ranges::sort(gone);
    auto sorted = victims;
    std::ranges::sort(sorted);
    ASSERT_EQ(gone, sorted);
    simple_.take(model_, numbers(*fresh), victims);
    const std::size_t published =
        below(5) == 0 ? below(static_cast<std::uint32_t>(missing) + 1) : missing;
    publish(group, domain, hit.end, *fresh, published, names, tokens, is_chained);
    table.insert(table.end(), fresh->begin(), fresh->end());
    held_.push_back(std::move(table));
  }

  PrefixHit find(GroupId group, std::uint16_t domain, std::uint32_t first, std::size_t count,
                 const SequenceNames& names, std::span<const TokenId> tokens) {
    const std::size_t size = cache_.tokens_per_block;
    const auto extras = names.extras(group);
    return pool_.match(Tier::device, BlockPool::root(DomainId{domain}, group, first),
                       names.names(group).subspan(first, count),
                       tokens.subspan(first * size, count * size),
                       extras.empty() ? extras : extras.subspan(first, count));
  }

  void publish(GroupId group, std::uint16_t domain, Prefix end, std::span<const BlockId> fresh,
               std::size_t count, const SequenceNames& names, std::span<const TokenId> tokens,
               bool is_chained) {
    const std::size_t size = cache_.tokens_per_block, from = is_chained ? end.depth : 0;
    if (!is_chained) end = BlockPool::root(DomainId{domain}, group);
    std::int64_t parent = -1;
    for (std::size_t i = 0; i < from; ++i)
      parent = simple_.identity(key(group, domain, tokens, i, parent));
    count = without_many_copies(group, domain, count, from, parent, tokens, is_chained);
    const auto extras = names.extras(group);
    pool_.publish(end, fresh.first(count), names.names(group).subspan(from, count),
                  tokens.subspan(from * size, count * size),
                  extras.empty() ? extras : extras.subspan(from, count));
    for (std::size_t i = 0; i < count; ++i) {
      const auto one = key(group, domain, tokens, from + i, parent);
      simple_.publish(fresh[i].value, one);
      if (is_chained) parent = simple_.identity(one);
    }
  }

  /// How many of the blocks can be published: the index keeps hints for 16 equal blocks at most,
  /// and for fewer where contents share buckets; which are forgotten depends on the pool's secret.
  std::size_t without_many_copies(GroupId group, std::uint16_t domain, std::size_t count,
                                  std::size_t from, std::int64_t parent,
                                  std::span<const TokenId> tokens, bool is_chained) const {
    constexpr std::size_t kMostCopies = 3;
    for (std::size_t i = 0; i < count; ++i) {
      const auto one = key(group, domain, tokens, from + i, parent);
      const std::size_t copies = simple_.copies(one);
      if (copies >= kMostCopies) return i;
      if (copies == 0 && is_chained) return count;  // nor has anything after it
      if (is_chained) parent = simple_.identity(one);
    }
    return count;
  }

  void finish() {
    std::swap(held_[below(static_cast<std::uint32_t>(held_.size()))], held_.back());
    pool_.release(held_.back());
    simple_.release(numbers(held_.back()));
    held_.pop_back();
  }

  const PoolGeometry& geometry_;
  const ModelCache& cache_;
  std::size_t model_;
  BlockPool pool_;
  SimplePool& simple_;
  std::mt19937& random_;
  std::vector<std::vector<BlockId>> held_;
  std::uint64_t hits_ = 0;
};

struct Mix {
  std::uint32_t seed, blocks;
  std::array<std::uint32_t, kMostModels> minimums;
};
std::ostream& operator<<(std::ostream& out, const Mix& mix) {
  return out << "seed " << mix.seed << ", " << mix.blocks << " blocks, model 1 is sure of "
             << mix.minimums[1];
}

class ModelsRandom : public ::testing::TestWithParam<Mix> {};

/// KVHIVE_STEPS=1000000 takes a minute for each mix.
TEST_P(ModelsRandom, ProcessesOfThreeModelsAgreeWithASimplePool) {
  const char* asked = std::getenv("KVHIVE_STEPS");
  const int steps = asked != nullptr ? std::atoi(asked) : kUnderSanitizer ? 3'000 : 15'000;
  PoolGeometry geometry = three_models(GetParam().blocks);
  geometry.model_minimums = GetParam().minimums;
  const PoolMemory memory = private_pool(geometry);
  std::mt19937 random(GetParam().seed);
  SimplePool simple(geometry);
  std::list<Process> processes;
  for (const std::uint8_t model : {0, 0, 1, 2, 1}) {
    const auto slot = static_cast<std::uint32_t>(processes.size());
    sign_in(memory, ProcessSlot{slot}, slot);
    processes.emplace_back(memory, slot, model, simple, random);
  }
  for (int i = 0; i < steps; ++i) {
    SCOPED_TRACE(i);
    auto process = processes.begin();
    std::advance(process, random() % processes.size());
    process->step();
    if (HasFatalFailure()) return;
    const auto queue = numbers(process->pool().free_queue(Tier::device));
    ASSERT_EQ(queue.size(), simple.free() + simple.idle().size());
    ASSERT_TRUE(std::ranges::equal(std::span(queue).subspan(simple.free()), simple.idle()));
    if (i % 1000 != 0) continue;
    ASSERT_THAT(fsck(memory, Moment::quiescent).violations, ::testing::IsEmpty());
  }
  for (Process& process : processes) {
    EXPECT_GT(process.hits(), std::uint64_t(steps) / 300);
    process.finish_all();
  }
  EXPECT_EQ(simple.free() + simple.idle().size(), GetParam().blocks);
  EXPECT_THAT(fsck(memory, Moment::quiescent).violations, ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Mixes, ModelsRandom,
                         ::testing::Values(Mix{1, 24, {}}, Mix{2, 60, {}}, Mix{3, 250, {}},
                                           Mix{4, 40, {0, 12, 0}}, Mix{5, 60, {20, 10, 5}}));

}  // namespace
}  // namespace kvhive::testing
