// Several models in one pool: random operations of engines in two real processes that take turns,
// against a pool that is written in the simplest way: prompts in every cache group, with adapters,
// aborted before and after they are computed, forked, swapped, and evicted content that moves to
// the host tier. KVHIVE_STEPS=1000000 for a long run.

#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <list>
#include <random>
#include <set>

#include "base/unique_fd.hpp"
#include "hashing/cache_salt.hpp"
#include "hashing/sequence_names.hpp"
#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "pool/processes/process_slot.hpp"
#include "pool/scrub.hpp"
#include "tests/pool/simple_pool.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/random_steps.hpp"
#include "tests/support/request.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

/// Three models: full attention in 4 tokens a block; full attention and a window in 8; a window and
/// chunks in 2.
PoolGeometry three_models(std::uint32_t blocks, std::uint32_t host_blocks) {
  PoolGeometry geometry = small_geometry(blocks + 1, host_blocks);
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

/// What an engine has done, so that a test knows that it has done anything.
struct Deeds {
  std::uint64_t hits = 0, host_hits = 0, shortages = 0, forks = 0, copies = 0, swaps = 0,
                demoted = 0;
};

class Engine {
 public:
  Engine(const PoolMemory& memory, std::uint32_t slot, std::uint8_t model, SimplePool& simple,
         std::mt19937& random)
      : cache_(memory.geometry().models[model]),
        model_(model),
        pool_(memory, ProcessSlot{slot}, Scrub::on_domain_change, {}, ModelId{model}),
        simple_(simple),
        random_(random) {}

  void step() {
    const std::uint32_t dice = below(100);
    if (dice < 44)
      begin();
    else if (held_.empty())
      return;
    else if (dice < 52)
      fork();
    else if (dice < 60)
      swap();
    else
      end();
  }
  void end_all() {
    while (!held_.empty()) end();
  }
  /// Free blocks come first; which, depends on who has freed them.
  void compare() {
    for (const Tier tier : {Tier::device, Tier::host}) {
      const auto queue = numbers(pool_.free_queue(tier));
      ASSERT_GE(queue.size(), simple_.free(tier));
      ASSERT_EQ(std::vector(queue.begin() + std::ptrdiff_t(simple_.free(tier)), queue.end()),
                simple_.idle(tier));
    }
  }
  const Deeds& deeds() const { return deeds_; }

 private:
  /// Tokens in one of the model's cache groups, and which of them are in which blocks.
  struct Sequence {
    GroupId group;
    DomainId domain;
    int adapter = 0;  ///< 0 = none
    std::vector<TokenId> tokens;
    SequenceNames names;
    std::vector<BlockId> blocks{};
    std::vector<std::int64_t> places{};  ///< of each block that is published, else kUnpublished
  };
  static constexpr std::int64_t kUnpublished = -1;

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }
  bool is_chained(const Sequence& s) const { return cache_.groups.is_chained(s.group); }
  std::size_t size() const { return cache_.tokens_per_block; }

  Sequence draw() {
    const GroupId group = cache_.groups.id(below(cache_.groups.count));
    const DomainId domain{std::uint16_t(below(2))};
    const int adapter = below(6) == 0 ? int(1 + below(2)) : 0;
    std::vector<TokenId> tokens;
    for (std::uint32_t left = 1 + below(5); left != 0; --left)
      tokens.insert(tokens.end(), size(), static_cast<TokenId>(below(3)));
    const char* const name = adapter == 0 ? "" : adapter == 1 ? "poet" : "clerk";
    SequenceNames names(cache_.groups, domain, size(), start_key("", name));
    names.extend(pool_.hasher(), tokens);
    return {group, domain, adapter, std::move(tokens), std::move(names)};
  }

  /// The key of the i-th block: chained to the identity before it, or to all tokens.
  SimplePool::Key key(const Sequence& s, std::size_t i, std::int64_t parent) const {
    const bool follows = is_chained(s) && i != 0;  // then its parent has the adapter
    SimplePool::Key key = {s.group.value, s.domain.value, parent, follows ? 0 : s.adapter};
    const std::size_t from = is_chained(s) ? i * size() : 0;
    key.insert(key.end(), s.tokens.begin() + std::ptrdiff_t(from),
               s.tokens.begin() + std::ptrdiff_t((i + 1) * size()));
    return key;
  }
  static constexpr std::int64_t kRoot = -1;
  /// What the i-th block follows, whose predecessors are all published.
  std::int64_t parent_of(const Sequence& s, std::size_t i) const {
    std::int64_t parent = kRoot;
    for (std::size_t k = 0; is_chained(s) && k < i; ++k)
      parent = simple_.identity(key(s, k, parent));
    return parent;
  }
  /// The blocks of s that a match from place `first` on must find.
  std::vector<std::uint32_t> expected(Tier tier, const Sequence& s, std::size_t first,
                                      std::size_t count) const {
    std::vector<std::uint32_t> found;
    std::int64_t parent = kRoot;
    for (std::size_t i = first; i < first + count; ++i) {
      const auto one = key(s, i, parent);
      const std::uint32_t id = simple_.find(tier, one);
      if (id == 0) break;
      found.push_back(id);
      if (is_chained(s)) parent = simple_.identity(one);
    }
    return found;
  }

  PrefixHit match(Tier tier, const Sequence& s, std::size_t first, std::size_t count) {
    const auto extras = s.names.extras(s.group);
    PrefixHit hit = pool_.match(tier, BlockPool::root(s.domain, s.group, std::uint32_t(first)),
                                s.names.names(s.group).subspan(first, count),
                                std::span(s.tokens).subspan(first * size(), count * size()),
                                extras.empty() ? extras : extras.subspan(first, count));
    const auto ids = expected(tier, s, first, count);
    EXPECT_EQ(numbers(hit.blocks), ids);
    simple_.pin(ids);
    (tier == Tier::device ? deeds_.hits : deeds_.host_hits) += ids.size();
    return hit;
  }
  void cancel(const PrefixHit& hit) {  // the blocks keep their places in the order
    pool_.cancel(hit);
    simple_.cancel(numbers(hit.blocks));
  }
  void release(std::span<const BlockId> blocks) {
    pool_.release(blocks);
    simple_.release(numbers(blocks));
  }

  struct Gone {
    Evicted evicted;
    SimplePool::Content content;
  };

  std::optional<std::vector<BlockId>> allocate(Tier tier, std::size_t count, DomainId domain) {
    const std::size_t room = simple_.available(tier, model_);
    EXPECT_EQ(pool_.available(tier, domain), room);
    std::vector<Evicted> evicted;
    const auto fresh = pool_.allocate(tier, count, domain, &evicted);
    EXPECT_EQ(fresh.has_value(), count <= room);
    if (!fresh || count > room) {
      ++deeds_.shortages;
      return std::nullopt;
    }
    std::vector<Gone> gone;
    std::vector<std::uint32_t> ids;
    for (const Evicted& one : evicted) {
      ids.push_back(one.block.value);
      gone.push_back({one, simple_.content(one.block.value).value_or(SimplePool::Content{})});
    }
    std::ranges::sort(ids);
    EXPECT_EQ(ids, simple_.victims(tier, model_, count));
    simple_.take(model_, numbers(*fresh));
    if (tier == Tier::device && below(4) != 0) demote(gone);
    for (const Evicted& one : evicted)
      if (one.domain != domain) change_domain(pool_.memory(), one.block, domain);
    return *fresh;
  }

  /// Content that both tiers lack moves to the host tier; what evicted last, if not all find room.
  void demote(const std::vector<Gone>& gone) {
    std::vector<Evicted> evicted;
    for (const Gone& one : gone) evicted.push_back(one.evicted);
    const auto demotions = pool_.demote(evicted);

    std::vector<const Gone*> moves;
    std::vector<std::uint32_t> on_host;
    std::set<std::int64_t> identities;
    for (const Gone& one : gone) {
      if (const std::uint32_t id = simple_.find(Tier::host, one.content.key); id != 0) {
        on_host.push_back(id);
        simple_.pin({id});
      } else if (!simple_.is_known(one.content.key) &&
                 identities.insert(one.content.identity).second) {
        moves.push_back(&one);
      }
    }
    const std::size_t room = std::min(moves.size(), simple_.available(Tier::host, model_));
    moves.erase(moves.begin(), moves.end() - std::ptrdiff_t(room));
    const auto victims = simple_.victims(Tier::host, model_, room);

    std::vector<std::uint32_t> found, taken, taken_from_idle;
    for (const Demotion& demotion : demotions)
      (demotion.is_on_host_already ? found : taken).push_back(demotion.destination.value);
    for (const std::uint32_t id : taken)
      if (simple_.content(id)) taken_from_idle.push_back(id);
    std::ranges::sort(taken_from_idle);
    EXPECT_EQ(found, on_host);
    EXPECT_EQ(taken.size(), room);
    EXPECT_EQ(taken_from_idle, victims);
    if (::testing::Test::HasFailure()) return;
    simple_.take(model_, taken);
    for (std::size_t i = 0; i < room; ++i) simple_.publish(taken[i], moves[i]->content);
    deeds_.demoted += room;

    pool_.finish_demotion(demotions);
    std::vector<std::uint32_t> all;
    for (const Demotion& demotion : demotions) all.push_back(demotion.destination.value);
    std::ranges::reverse(all);
    simple_.release(all);
  }

  /// Publishes blocks of s from place `first` on.
  void publish(const Sequence& s, const Prefix& end, std::size_t first,
               std::span<const BlockId> blocks) {
    const auto extras = s.names.extras(s.group);
    pool_.publish(end, blocks, s.names.names(s.group).subspan(first, blocks.size()),
                  std::span(s.tokens).subspan(first * size(), blocks.size() * size()),
                  extras.empty() ? extras : extras.subspan(first, blocks.size()));
    std::int64_t parent = parent_of(s, first);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto one = key(s, first + i, parent);
      simple_.publish(blocks[i].value, {one});
      if (is_chained(s)) parent = simple_.identity(one);
    }
  }

  /// The index keeps hints for 16 equal blocks at most, and for fewer where contents share buckets;
  /// which are forgotten depends on the pool's secret.
  static constexpr std::size_t kMostCopies = 3;
  /// How many of so many blocks from place `first` on can be published.
  std::size_t without_many_copies(const Sequence& s, std::size_t first, std::size_t count) const {
    std::int64_t parent = parent_of(s, first);
    for (std::size_t i = 0; i < count; ++i) {
      const auto one = key(s, first + i, parent);
      const std::size_t copies = simple_.copies(one);
      if (copies >= kMostCopies) return i;
      if (copies == 0 && is_chained(s)) return count;  // nor has anything after it
      if (is_chained(s)) parent = simple_.identity(one);
    }
    return count;
  }

  /// A prompt: matches what is there, computes and publishes the rest.
  void begin() {
    Sequence s = draw();
    const std::size_t blocks = s.names.blocks();
    const Tier tier = below(8) == 0 ? Tier::host : Tier::device;
    const std::size_t place = is_chained(s) ? 0 : below(std::uint32_t(blocks));
    const PrefixHit hit = match(tier, s, place, is_chained(s) ? blocks : 1);
    if (below(8) == 0) return cancel(hit);
    const std::size_t known = is_chained(s) ? hit.blocks.size() : 0, missing = blocks - known;
    const auto fresh = allocate(tier, missing, s.domain);
    if (!fresh) return cancel(hit);
    std::size_t published = below(5) == 0 ? below(std::uint32_t(missing) + 1) : missing;
    published = without_many_copies(s, known, published);
    publish(s, is_chained(s) ? hit.end : BlockPool::root(s.domain, s.group), known,
            std::span(*fresh).first(published));
    for (std::size_t i = 0; i < hit.blocks.size(); ++i) s.places.push_back(std::int64_t(place + i));
    for (std::size_t i = 0; i < missing; ++i)
      s.places.push_back(i < published ? std::int64_t(known + i) : kUnpublished);
    s.blocks = joined_ids(hit.blocks, *fresh);
    held_.push_back(std::move(s));
  }

  Sequence& any() { return held_[below(std::uint32_t(held_.size()))]; }

  /// A second sequence with the same blocks. One of the two may want to write into the last one.
  void fork() {
    Sequence copy = any();
    pool_.fork(copy.blocks);
    simple_.pin(numbers(copy.blocks));
    ++deeds_.forks;
    if (below(2) == 0) write_to(copy, copy.blocks.size() - 1);
    held_.push_back(std::move(copy));
    Sequence& other = any();
    write_to(other, below(std::uint32_t(other.blocks.size())));
  }

  /// Copy on write.
  void write_to(Sequence& s, std::size_t i) {
    const BlockId block = s.blocks[i];
    const Tier tier = simple_.tier_of(block.value);
    const bool is_own = simple_.references(block.value) == 1 && !simple_.content(block.value);
    const bool has_room = is_own || simple_.available(tier, model_) != 0;
    const auto copy = pool_.make_writable(block);
    ASSERT_EQ(copy.has_value(), has_room);
    if (!copy) return;
    ASSERT_EQ(copy->source, block);
    ASSERT_EQ(copy->destination == block, is_own);
    if (is_own) return;
    const std::uint32_t taken = copy->destination.value;
    std::vector<std::uint32_t> evicted;
    if (simple_.content(taken)) evicted.push_back(taken);
    ASSERT_EQ(evicted, simple_.victims(tier, model_, 1));
    simple_.take(model_, {taken});
    release({{block}});
    s.blocks[i] = copy->destination;
    s.places[i] = kUnpublished;
    ++deeds_.copies;
  }

  /// Moves a sequence to the other tier: what is published there already is found.
  void swap() {
    Sequence& s = any();
    const Tier from = simple_.tier_of(s.blocks[0].value);
    const Tier to = from == Tier::device ? Tier::host : Tier::device;
    std::size_t run = 0;  // published blocks from the start on
    while (run < s.places.size() && s.places[run] == std::int64_t(run)) ++run;
    if (is_chained(s) && std::ranges::any_of(std::span(s.places).subspan(run),
                                             [](auto place) { return place != kUnpublished; }))
      return;  // a block in between was written to
    PrefixHit hit{{}, BlockPool::root(s.domain, s.group)};
    if (is_chained(s)) hit = match(to, s, 0, run);
    const std::size_t known = hit.blocks.size();
    const auto fresh = allocate(to, s.blocks.size() - known, s.domain);
    if (!fresh) return cancel(hit);
    std::vector<BlockId> moved = joined_ids(hit.blocks, *fresh);
    if (is_chained(s)) {
      const std::size_t published = without_many_copies(s, known, run - known);
      publish(s, hit.end, known, std::span(*fresh).first(published));
      std::fill(s.places.begin() + std::ptrdiff_t(known + published), s.places.end(), kUnpublished);
    } else {
      for (std::size_t i = 0; i < moved.size(); ++i) {
        if (s.places[i] == kUnpublished) continue;
        const auto place = static_cast<std::size_t>(s.places[i]);
        if (without_many_copies(s, place, 1) == 0)
          s.places[i] = kUnpublished;
        else
          publish(s, BlockPool::root(s.domain, s.group, std::uint32_t(place)), place, {{moved[i]}});
      }
    }
    release(std::exchange(s.blocks, std::move(moved)));
    ++deeds_.swaps;
  }

  /// Also an abort: it may be half published.
  void end() {
    std::swap(any(), held_.back());
    release(held_.back().blocks);
    held_.pop_back();
  }

  const ModelCache& cache_;
  std::size_t model_;
  BlockPool pool_;
  SimplePool& simple_;
  std::mt19937& random_;
  std::vector<Sequence> held_;
  Deeds deeds_;
};

struct Mix {
  std::uint32_t seed, blocks, host_blocks;
  std::array<std::uint32_t, kMostModels> minimums;
};
std::ostream& operator<<(std::ostream& out, const Mix& mix) {
  return out << "seed " << mix.seed << ", " << mix.blocks << " + " << mix.host_blocks
             << " blocks, model 1 is sure of " << mix.minimums[1];
}

/// One of two processes. It does some steps, and then tells the other what it has done.
class Side {
 public:
  Side(const PoolMemory& memory, std::uint32_t side, const Mix& mix, UniqueFd socket)
      : memory_(memory),
        side_(side),
        socket_(std::move(socket)),
        random_(2 * mix.seed + side),
        simple_(memory.geometry()) {
    constexpr std::uint8_t kModels[] = {0, 1, 2, 0, 1, 2};
    for (std::uint32_t slot = side; slot < std::size(kModels); slot += 2) {
      sign_in(memory, ProcessSlot{slot}, slot);
      engines_.emplace_back(memory, slot, kModels[slot], simple_, random_);
    }
  }

  /// Both sides end what they hold when so many steps are done; the last one to do so checks that
  /// nothing is left.
  void run(std::uint64_t steps) {
    std::uint64_t done = 0;
    if (side_ == 1 && !listen(done)) return;
    while (true) {
      const bool is_over = done >= steps;
      if (is_over)
        for (Engine& engine : engines_) engine.end_all();
      else
        take_turn(done);
      if (::testing::Test::HasFailure()) return;
      if (is_over) expect_hits(steps);
      if (other_has_ended_) return expect_an_empty_pool();
      if (!tell(done, is_over) || is_over || !listen(done)) return;
    }
  }

  Deeds deeds() const {
    Deeds sum;
    for (const Engine& engine : engines_) {
      const Deeds& one = engine.deeds();
      sum.hits += one.hits, sum.host_hits += one.host_hits, sum.shortages += one.shortages;
      sum.forks += one.forks, sum.copies += one.copies, sum.swaps += one.swaps;
      sum.demoted += one.demoted;
    }
    return sum;
  }

 private:
  void take_turn(std::uint64_t& done) {
    for (std::uint64_t left = 1 + random_() % 4; left != 0; --left, ++done) {
      SCOPED_TRACE(done);
      auto engine = engines_.begin();
      std::advance(engine, random_() % engines_.size());
      engine->step();
      engine->compare();
      if (done % 1000 == 0) {
        EXPECT_THAT(fsck(memory_, Moment::quiescent).violations, ::testing::IsEmpty());
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  bool tell(std::uint64_t done, bool has_ended) {
    std::vector<std::int64_t> words = simple_.take_log();
    words.insert(words.end(), {std::int64_t(done), has_ended});
    const auto bytes = words.size() * sizeof words[0];
    const ssize_t sent = send(socket_.get(), words.data(), bytes, MSG_NOSIGNAL);
    EXPECT_EQ(sent, ssize_t(bytes)) << "the other process has stopped";
    return sent == ssize_t(bytes);
  }
  bool listen(std::uint64_t& done) {
    words_.resize(1 << 16);
    const ssize_t got = recv(socket_.get(), words_.data(), words_.size() * sizeof words_[0], 0);
    EXPECT_GT(got, 0) << "the other process has stopped";
    if (got <= 0) return false;
    const auto count = std::size_t(got) / sizeof words_[0];
    simple_.follow(std::span(words_).first(count - 2));
    done = std::uint64_t(words_[count - 2]);
    other_has_ended_ = words_[count - 1] != 0;
    return true;
  }

  /// Each engine's.
  void expect_hits(std::uint64_t steps) {
    for (const Engine& engine : engines_) EXPECT_GT(engine.deeds().hits, steps / 300);
  }
  void expect_an_empty_pool() {
    for (const Tier tier : {Tier::device, Tier::host})
      EXPECT_EQ(simple_.free(tier) + simple_.idle(tier).size(),
                memory_.tier_layout(tier).blocks - (tier == Tier::device ? 1 : 0));
    EXPECT_THAT(fsck(memory_, Moment::quiescent).violations, ::testing::IsEmpty());
  }

  const PoolMemory& memory_;
  std::uint32_t side_;
  UniqueFd socket_;
  std::mt19937 random_;
  SimplePool simple_;
  std::list<Engine> engines_;
  std::vector<std::int64_t> words_;
  bool other_has_ended_ = false;
};

class ModelsRandom : public ::testing::TestWithParam<Mix> {};

TEST_P(ModelsRandom, ProcessesOfThreeModelsAgreeWithASimplePool) {
  const std::uint64_t steps = random_steps(kUnderSanitizer ? 5'000 : 15'000);
  PoolGeometry geometry = three_models(GetParam().blocks, GetParam().host_blocks);
  geometry.model_minimums = GetParam().minimums;
  const char* const secret = std::getenv("KVHIVE_SECRET");
  const PoolMemory memory =
      private_pool(geometry, secret != nullptr ? std::strtoull(secret, nullptr, 10)
                                               : std::uint64_t{GetParam().seed});
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  std::fflush(stdout);  // or both would write what is in its buffer
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ours = UniqueFd();
    Side(memory, 1, GetParam(), std::move(theirs)).run(steps);
    std::fflush(stdout);
    _exit(HasFailure() ? 1 : 0);
  }
  theirs = UniqueFd();
  Deeds deeds;
  {
    Side side(memory, 0, GetParam(), std::move(ours));
    side.run(steps);
    deeds = side.deeds();
  }
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::printf(
      "%s: of half the steps %zu hits, %zu in the host tier, %zu shortages, %zu forks, "
      "%zu copies on write, %zu swaps, %zu demoted\n",
      ::testing::PrintToString(GetParam()).c_str(), deeds.hits, deeds.host_hits, deeds.shortages,
      deeds.forks, deeds.copies, deeds.swaps, deeds.demoted);
  EXPECT_GT(deeds.hits, steps / 100);
  EXPECT_GT(deeds.forks, steps / 100);
  EXPECT_GT(deeds.copies, steps / 100);
  EXPECT_EQ(deeds.host_hits > steps / 500, GetParam().host_blocks != 0);
  EXPECT_EQ(deeds.swaps > steps / 300, GetParam().host_blocks != 0);
  EXPECT_EQ(deeds.demoted > steps / 100, GetParam().host_blocks != 0);
  EXPECT_GT(deeds.shortages, 0u);
}

INSTANTIATE_TEST_SUITE_P(Mixes, ModelsRandom,
                         ::testing::Values(Mix{1, 40, 16, {}}, Mix{2, 60, 0, {}},
                                           Mix{3, 250, 100, {}}, Mix{4, 60, 30, {0, 12, 0}},
                                           Mix{5, 80, 20, {20, 10, 5}}));

}  // namespace
}  // namespace kvhive::testing
