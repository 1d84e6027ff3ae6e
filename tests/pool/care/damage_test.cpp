// Flips single bits in a pool that is in use. There must be no access out of range and no wrong
// hit, and a repair must make the pool sound again.

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <random>
#include <set>

#include "pool/care/miss_report.hpp"
#include "pool/care/pool_report.hpp"
#include "pool/care/reaper.hpp"
#include "pool/care/repair.hpp"
#include "tests/pool/prompt_oracle.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/sanitizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

constexpr int kFlips = kUnderThreadSanitizer ? 1'500 : kUnderSanitizer ? 20'000 : 40'000;

/// Two engines that use one pool, and functions that flip bits in it.
class DamagedPool {
 public:
  explicit DamagedPool(std::uint32_t seed) : random_(seed) { start_anew(); }

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  void start_anew() {
    for (auto& engine : engines_) engine.reset();
    memory_.reset();
    memory_.emplace(private_pool(small_geometry(70, 20)));
    owners_ = {};
    for (std::uint32_t slot = 0; slot < engines_.size(); ++slot) attach(slot);
  }

  void work(int requests) {
    for (int i = 0; i < requests; ++i) {
      CheckedEngine& engine = *engines_[below(std::uint32_t(engines_.size()))];
      if (engine.running() > 2) engine.finish_one();
      engine.serve(draw_prompt(engine.pool()), below(5) == 0 ? Tier::host : Tier::device);
    }
  }

  /// Ends an engine, reaps its slot and starts another engine there.
  void kill_one() {
    const std::uint32_t slot = below(std::uint32_t(engines_.size()));
    engines_[slot].reset();
    owners_[slot].use = SlotOwner::Use::unswept;
    reap(*memory_, ProcessSlot{slot});
    attach(slot);
  }

  /// Flips one random bit in one of twelve parts of the pool, each equally likely. Returns which
  /// bit.
  std::string flip() {
    const PoolLayout& layout = memory_->layout();
    ControlBlock& control = memory_->control();
    const auto tier = Tier(below(2));
    const auto& t = memory_->tier_layout(tier);
    BlockDescriptor& block = memory_->descriptors()[below(memory_->geometry().total_blocks())];
    switch (below(12)) {
      case 0: return flip_in(&block.word, 8, "word");
      case 1: return flip_in(&block, sizeof block, "descriptor");
      case 2: return flip_in(memory_->index(), layout.index_buckets * 64, "index");
      case 3: return flip_in(memory_->bitmap(tier), t.bitmap_words * 8, "bitmap");
      case 4: return flip_in(memory_->summary(tier), t.summary_words * 8, "summary");
      case 5: return flip_in(memory_->ring(tier), t.ring_slots * 4, "ring");
      case 6: return flip_in(&control.tiers, sizeof control.tiers, "tier control");
      case 7: return flip_in(&control.next_serial, 8, "next serial");
      case 8: return flip_in(&control.processes, 3 * sizeof(ProcessEntry), "process entry");
      case 9: return flip_in(memory_->token_row(BlockId{0}), layout.tokens_header, "tokens");
      case 10: return flip_in(&control.header, 2 * sizeof(PoolHeader) + 8, "header");
      default:
        return flip_in(memory_->journal(), layout.journal_slots * sizeof(JournalRecord), "journal");
    }
  }

  FsckReport look() const { return fsck(*memory_, Moment::quiescent, &owners_); }
  RepairReport mend() const { return repair(*memory_, owners_); }
  void inspect() {
    (void)report_pool(*memory_);
    (void)report_domains(*memory_);
    const Prompt prompt = draw_prompt(engines_[0]->pool());
    (void)explain_miss(*memory_, prompt.domain, prompt.tokens);
  }

  /// After all engines have ended, every block that is not retired can be allocated.
  void expect_all_there() {
    for (std::uint32_t slot = 0; slot < engines_.size(); ++slot) {
      engines_[slot].reset();
      reap(*memory_, ProcessSlot{slot});
      attach(slot);
    }
    for (const Tier tier : {Tier::device, Tier::host}) {
      BlockPool& pool = engines_[0]->pool();
      ASSERT_EQ(pool.available(tier), pool.capacity(tier));
      const auto all = pool.allocate(tier, pool.capacity(tier));
      ASSERT_TRUE(all.has_value()) << all.error().text;
      pool.release(*all);
    }
  }

  std::size_t retired() const { return look().retired; }
  const CheckedEngine::Tally& tally() const { return tally_; }
  const PoolMemory& memory() const { return *memory_; }
  CheckedEngine& engine() { return *engines_[0]; }

 private:
  void attach(std::uint32_t slot) {
    occupy(*memory_, ProcessSlot{slot}, 100 + slot);
    owners_[slot] = {SlotOwner::Use::used, 100 + slot};
    engines_[slot] = std::make_unique<CheckedEngine>(*memory_, ProcessSlot{slot}, tally_);
  }

  Prompt draw_prompt(const BlockPool& pool) {
    std::vector<TokenId> tokens;
    for (std::uint32_t left = 1 + below(6); left != 0; --left)
      tokens.insert(tokens.end(), 4, static_cast<TokenId>(below(3)));
    tokens.resize(tokens.size() + below(2));  // some prompts end in a partial block
    return Prompt(pool, std::move(tokens), DomainId{std::uint16_t(below(2))});
  }

  template <class T>
  std::string flip_in(T* start, std::size_t bytes, const char* name) {
    const std::uint32_t bit = below(std::uint32_t(bytes * 8));
    auto* byte =
        reinterpret_cast<unsigned char*>(const_cast<std::remove_cv_t<T>*>(start)) + bit / 8;
    *byte = static_cast<unsigned char>(*byte ^ 1u << bit % 8);
    return std::string(name) + " bit " + std::to_string(bit);
  }

  std::mt19937 random_;
  std::optional<PoolMemory> memory_;
  SlotOwners owners_{};
  CheckedEngine::Tally tally_;
  std::array<std::unique_ptr<CheckedEngine>, 2> engines_;
};

class Damage : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Damage, SingleFlippedBitsAreRepairedWithoutAWrongHit) {
  DamagedPool pool(GetParam());
  std::uint64_t seen = 0, retired = 0;
  for (int i = 0; i < kFlips; ++i) {
    pool.work(2);
    const std::string what = pool.flip();
    SCOPED_TRACE("flip " + std::to_string(i) + ": " + what);
    if (i % 2 == 0) pool.work(3);  // before a repair
    if (i % 16 == 0) pool.inspect();
    if (i % 7 == 0) pool.kill_one();
    seen += !pool.look().is_clean();
    const RepairReport mended = pool.mend();
    retired += mended.retired;
    const FsckReport after = pool.look();
    ASSERT_THAT(after.violations, IsEmpty());
    EXPECT_EQ(after.unlisted, 0u);
    pool.work(2);
    ASSERT_EQ(pool.tally().wrong, 0u);
    if (i % 100 == 99) {
      pool.expect_all_there();
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    if (after.retired > 30) pool.start_anew();
  }
  EXPECT_GT(seen, std::uint64_t(kFlips) / 20);
  EXPECT_GT(retired, std::uint64_t(kFlips) / 100);
  EXPECT_GT(pool.tally().hits, std::uint64_t(kFlips));
  EXPECT_GT(pool.tally().served, std::uint64_t(kFlips));
}

/// Many bits at once, and seldom a repair. The only promise is that no access is out of range and
/// no loop is endless. The bytes of hits may be wrong: two flips in one word can free a block in
/// use.
TEST_P(Damage, ManyFlippedBitsCauseNoBadAccessAndNoEndlessLoop) {
  DamagedPool pool(GetParam() + 1000);
  for (int round = 0; round < kFlips / 20; ++round) {
    for (int i = 0; i < 20; ++i) {
      pool.flip();
      pool.work(1);
    }
    pool.inspect();
    (void)pool.look();
    pool.kill_one();
    if (round % 3 == 0) pool.mend();
    if (round % 10 == 9) pool.start_anew();
  }
  SUCCEED();
}

INSTANTIATE_TEST_SUITE_P(Seeds, Damage, ::testing::Values(1u, 2u));

// -- single bits that fsck must detect

class BitByBit : public ::testing::Test {
 protected:
  BitByBit() : memory(private_pool(small_geometry(12, 4))), pool(memory, ProcessSlot{0}) {
    occupy(memory, ProcessSlot{0});
    (void)admit(pool, Prompt(pool, counting(0, 14))).value();  // 1 2 3 held, 4 filling
    leave_idle(pool, idle);                                    // 5 6 7
  }

  bool is_clean() const { return fsck(memory).is_clean(); }

  PoolMemory memory;
  BlockPool pool;
  const Prompt idle{pool, counting(500, 12)};
};

/// Whether the word obeys invariants 1 and 2 (ARCHITECTURE.md).
bool is_possible(BlockWord word) {
  const std::uint32_t holders = word.holders();
  if ((word.bits >> 35 & 1) != 0 || (holders & ~1u) != 0) return false;
  switch (word.state()) {
    case BlockState::free:
    case BlockState::retired: return holders == 0;
    case BlockState::filling: return holders == 1;
    case BlockState::ready: return true;
    default: return false;
  }
}

TEST_F(BitByBit, FsckSeesEveryImpossibleWord) {
  for (const std::uint32_t id : {2u, 4u, 6u, 9u, 13u}) {
    auto& word = memory.descriptors()[id].word;
    const BlockWord before{word.load()};
    for (int bit = 0; bit < 64; ++bit) {
      const BlockWord flipped{before.bits ^ 1ull << bit};
      word.store(flipped.bits);
      // fsck detects a free block made "ready", which has no name, and a held one made "free".
      const bool has_no_name =
          flipped.state() == BlockState::ready && before.state() != BlockState::ready;
      const bool is_fine = is_possible(flipped) && !has_no_name;
      const FsckReport report = fsck(memory);
      EXPECT_EQ(report.is_clean(), is_fine)
          << "block " << id << " bit " << bit
          << (report.violations.empty() ? "" : ": " + report.violations[0]);
    }
    word.store(before.bits);
  }
  EXPECT_TRUE(is_clean());
}

TEST_F(BitByBit, FsckSeesEveryFlippedBitOfANameDepthAndDomain) {
  BlockDescriptor& d = memory.descriptors()[6];
  const auto flip_all = [&](auto& field, int bits, const char* name) {
    for (int bit = 0; bit < bits; ++bit) {
      const auto sound = field.load();
      field.store(static_cast<decltype(sound)>(sound ^ (std::uint64_t{1} << bit)));
      EXPECT_FALSE(is_clean()) << name << " bit " << bit;
      field.store(sound);
    }
  };
  flip_all(d.hash_low, 64, "hash_low");
  flip_all(d.hash_high, 64, "hash_high");
  flip_all(d.depth, 32, "depth");
  flip_all(d.domain, 16, "domain");
  flip_all(d.group, 8, "group");
  flip_all(d.traits, 1, "traits");  // its other bits are statistics
  flip_all(memory.token_row(BlockId{6})[1], 64, "tokens");
  EXPECT_TRUE(is_clean());
}

TEST_F(BitByBit, ACorruptDescriptorIsAMissNeverAWrongHit) {
  const PromptOracle oracle(memory);
  for (std::size_t i = 0; i < 3; ++i) oracle.fill(BlockId{std::uint32_t(5 + i)}, idle, i);
  BlockDescriptor& d = memory.descriptors()[6];
  std::size_t misses = 0;
  const auto look = [&](const char* field, int bit) {
    const PrefixHit hit = match_all(pool, idle);
    for (std::size_t i = 0; i < hit.blocks.size(); ++i)
      EXPECT_TRUE(oracle.is_right(hit.blocks[i], idle, i)) << field << " bit " << bit;
    misses += hit.blocks.size() < 3;
    pool.cancel(hit);
    PrefixIndex index(memory.index(), memory.layout().index_buckets);
    if (index.glance(idle.chain[1]).block == kNullBlock) index.insert(idle.chain[1], BlockId{6});
  };
  const auto flip_all = [&](auto& field, int bits, const char* name) {
    for (int bit = 0; bit < bits; ++bit) {
      const auto sound = field.load();
      field.store(static_cast<decltype(sound)>(sound ^ (std::uint64_t{1} << bit)));
      look(name, bit);
      field.store(sound);
    }
  };
  for (auto* field : {&d.hash_low, &d.uid, &d.parent_uid, &d.serial, &d.stamp})
    flip_all(*field, 64, "a number");
  flip_all(d.traits, 8, "traits");
  flip_all(d.domain, 16, "domain");
  flip_all(memory.token_row(BlockId{6})[0], 64, "tokens");
  EXPECT_GT(misses, 64u * 3);
  look("none", 0);
}

TEST_F(BitByBit, AFlippedIndexBitNeverMakesAWrongHit) {
  const PromptOracle oracle(memory);
  for (std::size_t i = 0; i < 3; ++i) oracle.fill(BlockId{std::uint32_t(5 + i)}, idle, i);
  for (std::size_t b = 0; b < memory.layout().index_buckets; ++b) {
    for (auto& way : memory.index()[b].way) {
      const std::uint64_t sound = way.load();
      for (int bit = 0; bit < 64; ++bit) {
        way.store(sound ^ 1ull << bit);
        const PrefixHit hit = match_all(pool, idle);
        for (std::size_t i = 0; i < hit.blocks.size(); ++i)
          ASSERT_TRUE(oracle.is_right(hit.blocks[i], idle, i));
        pool.cancel(hit);
        way.store(sound);
      }
    }
  }
}

// -- bugs that these tests found, now fixed

TEST(DamageFixed, ABitBeyondTheEndOfTheBitmapIsNoBlock) {
  const PoolMemory memory = private_pool(small_geometry(5, 3));
  BlockPool pool(memory, ProcessSlot{0});
  memory.bitmap(Tier::device)[0].fetch_or(~0ull << 5);
  memory.summary(Tier::device)[0].store(~0ull);
  EXPECT_EQ(numbers(pool.allocate(Tier::device, 4).value()),
            (std::vector<std::uint32_t>{1, 2, 3, 4}));
  EXPECT_FALSE(pool.allocate(Tier::device, 1).has_value())
      << "block 5 is in the host tier, block 8 does not exist";
}

TEST(DamageFixed, TheNullBlockIsNeverGivenOut) {
  for (const BlockState state : {BlockState::free, BlockState::ready}) {
    const PoolMemory memory = private_pool(small_geometry(4));
    BlockPool pool(memory, ProcessSlot{0});
    memory.descriptors()[0].word.store(BlockWord::make(state, 0, 0).bits);
    memory.bitmap(Tier::device)[0].fetch_or(1);
    EXPECT_EQ(numbers(pool.allocate(Tier::device, 3).value()),
              (std::vector<std::uint32_t>{1, 2, 3}));
    EXPECT_FALSE(pool.allocate(Tier::device, 1).has_value());
  }
}

TEST(DamageFixed, AHeldBlockIsNotGivenOutAgainEvenIfItsHolderBitIsLost) {
  const PoolMemory memory = private_pool(small_geometry(4));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 8));
  const Request request = admit(pool, prompt).value();  // 1 2
  memory.descriptors()[1].word.fetch_and(~1ull);        // the bit of this process
  EXPECT_FALSE(pool.allocate(Tier::device, 2).has_value());
  EXPECT_EQ(match_all(pool, prompt).blocks, request.blocks);
  pool.release(request.blocks);
  pool.release(request.blocks);
  EXPECT_TRUE(pool.allocate(Tier::device, 3).has_value());
}

TEST(DamageFixed, AFreeBlockWithAHolderIsNotGivenOut) {
  const PoolMemory memory = private_pool(small_geometry(4));
  BlockPool pool(memory, ProcessSlot{0});
  memory.descriptors()[1].word.store(BlockWord::make(BlockState::free, 7, 2).bits);
  EXPECT_EQ(numbers(pool.allocate(Tier::device, 2).value()), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_FALSE(pool.allocate(Tier::device, 1).has_value());
}

TEST(DamageFixed, AnEmptyBlockMarkedReadyIsNotFound) {
  const PoolMemory memory = private_pool(small_geometry(4));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 4));
  leave_idle(pool, prompt);  // 1
  pool.release(pool.allocate(Tier::device, 3).value());
  PrefixIndex(memory.index(), memory.layout().index_buckets)
      .insert(prompt.chain[0], BlockId{1});            // a stale hint
  memory.descriptors()[1].word.fetch_xor(2ull << 32);  // free -> ready
  EXPECT_THAT(match_all(pool, prompt).blocks, IsEmpty()) << "its bytes may have been overwritten";
}

TEST(DamageFixed, AHeadFarAheadOfTheTailCausesNoEndlessLoop) {
  const PoolMemory memory = private_pool(small_geometry(6));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 12));
  leave_idle(pool, prompt);
  memory.control().tiers[0].lanes[0].head.store(1ull << 61);
  // Must not draw stamps until the tail has reached the head.
  pool.release(match_all(pool, prompt).blocks);
  EXPECT_TRUE(pool.allocate(Tier::device, 5).has_value());
}

TEST(DamageFixed, ASerialCounterThatFellGivesNoUidTwice) {
  const PoolMemory memory = private_pool(small_geometry(12));
  BlockPool pool(memory, ProcessSlot{0});
  for (TokenId i = 0; i < 5; ++i) leave_idle(pool, Prompt(pool, counting(i * 100, 4)));
  memory.control().next_serial.store(2);
  leave_idle(pool, Prompt(pool, counting(900, 4)));
  std::set<std::uint64_t> uids;
  for (std::uint32_t id = 1; id <= 6; ++id) uids.insert(memory.descriptors()[id].uid.load());
  EXPECT_EQ(uids.size(), 6u);
}

TEST(DamageFixed, ASerialCounterOutOfRangePublishesNothing) {
  const PoolMemory memory = private_pool(small_geometry(12));
  BlockPool pool(memory, ProcessSlot{0});
  memory.control().next_serial.store(kRootUid | 3);  // such uids are those of domain roots
  const Prompt prompt(pool, counting(0, 8));
  const Request request = admit(pool, prompt).value();
  EXPECT_THAT(match_all(pool, prompt).blocks, IsEmpty());
  pool.release(request.blocks);
  EXPECT_EQ(pool.available(Tier::device), 11u);
}

TEST(DamageFixed, ABlockWhoseWordIsNotFillingIsNotPublished) {
  const PoolMemory memory = private_pool(small_geometry(12));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt prompt(pool, counting(0, 12));
  const auto blocks = pool.allocate(Tier::device, 3).value();
  memory.descriptors()[2].word.fetch_xor(1ull << 32);  // filling -> free, held
  pool.publish(BlockPool::root({}), blocks, prompt.chain, prompt.tokens);
  EXPECT_EQ(numbers(match_all(pool, prompt).blocks), (std::vector<std::uint32_t>{1}));
  pool.release(blocks);
}

}  // namespace
}  // namespace kvhive::testing
