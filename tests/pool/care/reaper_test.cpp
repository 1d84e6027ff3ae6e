#include "pool/care/reaper.hpp"

#include <gmock/gmock.h>

#include "pool/block_pool.hpp"
#include "pool/care/fsck.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;
using Ids = std::vector<std::uint32_t>;

constexpr ProcessSlot kDead{0}, kAlive{1};

/// Two processes. `dead` is the one that dies: the test stops calling it and reaps its slot.
struct Bench {
  explicit Bench(PoolGeometry geometry)
      : memory(private_pool(geometry)), dead(memory, kDead), alive(memory, kAlive) {
    occupy(memory, kDead);
    occupy(memory, kAlive);
  }
  ~Bench() { EXPECT_THAT(fsck(memory).violations, IsEmpty()); }

  BlockWord word(std::uint32_t id) const { return {memory.descriptors()[id].word.load()}; }

  PoolMemory memory;
  BlockPool dead;
  BlockPool alive;
};

TEST(Reaper, FreesWhatWasBeingFilledAndKeepsWhatWasPublished) {
  Bench b(small_geometry(8, 4));
  const Prompt prompt(b.dead, counting(0, 10));
  (void)admit(b.dead, prompt).value();  // two blocks published, one not
  (void)b.dead.allocate(Tier::host, 3).value();

  const ReapReport report = reap(b.memory, kDead);
  EXPECT_EQ(report.released, 2u);
  EXPECT_EQ(report.freed, 1u + 3u);
  EXPECT_EQ(b.alive.available(Tier::device), 7u);
  EXPECT_EQ(b.alive.available(Tier::host), 4u);
  const PrefixHit hit = match_all(b.alive, prompt);
  EXPECT_EQ(numbers(hit.blocks), (Ids{1, 2}));
  b.alive.release(hit.blocks);
  EXPECT_TRUE(b.alive.allocate(Tier::device, 7).has_value());
  EXPECT_TRUE(b.alive.allocate(Tier::host, 4).has_value());
}

/// The kernels of a process that lost its device may have written to any device block. Blocks that
/// live processes hold are kept, because those processes have already read them.
TEST(Reaper, AfterALostDeviceOnlyBlocksThatOthersHoldAreKept) {
  Bench b(small_geometry(8, 4));
  const Prompt held(b.dead, counting(0, 4)), idle(b.dead, counting(10, 4)),
      theirs(b.alive, counting(20, 4)), both(b.alive, counting(30, 4));
  (void)admit(b.dead, held).value();
  leave_idle(b.dead, idle);
  (void)admit(b.alive, theirs).value();
  (void)admit(b.alive, both).value();
  (void)match_all(b.dead, both);
  const Prompt on_host(b.dead, counting(40, 4));
  const auto copy = b.dead.allocate(Tier::host, 1).value();
  b.dead.publish(BlockPool::root({}), copy, on_host.chain, on_host.tokens);
  b.dead.release(copy);

  const ReapReport report = reap(b.memory, kDead, Unheld::dropped);
  EXPECT_EQ(report.dropped, 2u);
  EXPECT_EQ(report.released, 1u);
  EXPECT_TRUE(match_all(b.alive, held).blocks.empty());
  EXPECT_TRUE(match_all(b.alive, idle).blocks.empty());
  EXPECT_EQ(match_all(b.alive, theirs).blocks.size(), 1u);
  EXPECT_EQ(match_all(b.alive, both).blocks.size(), 1u);
  EXPECT_EQ(match_all(b.alive, on_host, Tier::host).blocks.size(), 1u);
  EXPECT_EQ(b.alive.available(Tier::device), 5u);
  EXPECT_TRUE(b.alive.allocate(Tier::device, 5).has_value());
}

TEST(Reaper, FinishesAnInterruptedEviction) {
  Bench b(small_geometry(8));
  leave_idle(b.alive, Prompt(b.alive, counting(0, 4)));  // 1
  BlockDescriptor& d = b.memory.descriptors()[1];
  d.word.store(
      BlockWord::make(BlockState::filling, b.word(1).generation() + 1, holder_bit(kDead)).bits);
  EXPECT_EQ(fsck(b.memory).stale_hints, 1u);
  EXPECT_EQ(reap(b.memory, kDead).freed, 1u);
  EXPECT_EQ(fsck(b.memory).stale_hints, 0u);
  EXPECT_EQ(d.uid.load(), 0u) << "an empty block has no uid";
}

TEST(Reaper, LeavesOtherProcessesTheirHolderBits) {
  Bench b(small_geometry(8));
  const Prompt prompt(b.dead, counting(0, 8));
  (void)admit(b.dead, prompt).value();
  const PrefixHit theirs = match_all(b.alive, prompt);
  const auto filling = b.alive.allocate(Tier::device, 2).value();
  reap(b.memory, kDead);
  for (const BlockId block : theirs.blocks)
    EXPECT_EQ(b.word(block.value).holders(), holder_bit(kAlive));
  EXPECT_EQ(b.word(filling[0].value).state(), BlockState::filling);
  EXPECT_EQ(b.alive.available(Tier::device), 3u);
  b.alive.release(theirs.blocks);
  b.alive.release(filling);
  EXPECT_EQ(b.alive.available(Tier::device), 7u);
}

TEST(Reaper, EndsOfSequencesAreEvictedBeforeTheirStarts) {
  Bench b(small_geometry(8));
  (void)admit(b.dead, Prompt(b.dead, counting(0, 12))).value();
  reap(b.memory, kDead);
  EXPECT_EQ(numbers(b.alive.free_queue(Tier::device)), (Ids{4, 5, 6, 7, 3, 2, 1}));
}

TEST(Reaper, VacatesTheSlotForTheNext) {
  Bench b(small_geometry(8));
  ProcessEntry& entry = b.memory.control().processes[kDead.value];
  entry.counters["running"].store(3);
  entry.counters["waiting"].store(4);
  (void)b.dead.allocate(Tier::device, 3).value();
  reap(b.memory, kDead);
  EXPECT_EQ(entry.pid.load(), 0u);
  EXPECT_EQ(entry.counters["running"].load(), 0u);
  EXPECT_EQ(entry.counters["waiting"].load(), 0u);

  occupy(b.memory, kDead);
  BlockPool next(b.memory, kDead);
  EXPECT_EQ(next.references(BlockId{1}), 0u);
  next.release(next.allocate(Tier::device, 7).value());
  EXPECT_EQ(next.available(Tier::device), 7u);
}

TEST(Reaper, ReapingTwiceIsHarmless) {
  Bench b(small_geometry(8));
  const auto held = b.alive.allocate(Tier::device, 2).value();
  (void)admit(b.dead, Prompt(b.dead, counting(0, 10))).value();
  reap(b.memory, kDead);
  const auto before = numbers(b.alive.free_queue(Tier::device));
  const ReapReport again = reap(b.memory, kDead);
  EXPECT_EQ(again.freed + again.released, 0u);
  EXPECT_EQ(numbers(b.alive.free_queue(Tier::device)), before);
  EXPECT_EQ(b.alive.available(Tier::device), 5u);
  b.alive.release(held);
}

TEST(Reaper, ReapingANeverUsedSlotIsHarmless) {
  Bench b(small_geometry(8));
  const auto held = b.alive.allocate(Tier::device, 7).value();
  const ReapReport report = reap(b.memory, ProcessSlot{30});
  EXPECT_EQ(report.freed + report.released, 0u);
  b.alive.release(held);
}

TEST(Reaper, UsedCountsStayRightWhenOtherProcessesReleasedTheBlocks) {
  // The dead process counted a block as used, and the live one's release counted it as unused; for
  // another block it is the other way round.
  Bench b(small_geometry(8));
  const Prompt first(b.dead, counting(0, 4)), second(b.dead, counting(100, 4));
  const Request ours = admit(b.dead, first).value();
  const Request theirs = admit(b.alive, second).value();
  const PrefixHit of_theirs = match_all(b.dead, second);
  const PrefixHit of_ours = match_all(b.alive, first);
  b.dead.release(ours.blocks);     // the live process is now the last holder
  b.alive.release(theirs.blocks);  // the dead process is now the last holder
  EXPECT_EQ(b.alive.available(Tier::device), 5u);
  reap(b.memory, kDead);
  EXPECT_EQ(b.alive.available(Tier::device), 6u);
  b.alive.release(of_ours.blocks);
  EXPECT_EQ(b.alive.available(Tier::device), 7u);
}

TEST(Reaper, CorrectsACountTheDeadProcessDidNotMake) {
  Bench b(small_geometry(8));
  (void)b.dead.allocate(Tier::device, 3).value();
  b.dead.counters().used[0].fetch_sub(1);  // killed between the word and the counter
  EXPECT_EQ(b.alive.available(Tier::device), 5u);
  reap(b.memory, kDead);
  EXPECT_EQ(b.alive.available(Tier::device), 7u);
  EXPECT_TRUE(b.alive.allocate(Tier::device, 7).has_value());
}

TEST(Reaper, RestoresLostFreeHints) {
  Bench b(small_geometry(300));
  for (std::size_t i = 0; i < b.memory.tier_layout(Tier::device).bitmap_words; ++i)
    b.memory.bitmap(Tier::device)[i].store(0);
  b.memory.summary(Tier::device)[0].store(0);
  reap(b.memory, kDead);
  for (std::uint32_t id = 1; id < 300; ++id)
    EXPECT_TRUE(b.memory.bitmap(Tier::device)[id / 64].load() >> id % 64 & 1) << id;
  EXPECT_FALSE(b.memory.bitmap(Tier::device)[0].load() & 1) << "the null block";
}

TEST(Reaper, IdleBlocksThatAKilledEvictorPassedAreFound) {
  Bench b(small_geometry(8));
  for (TokenId i = 0; i < 7; ++i) leave_idle(b.alive, Prompt(b.alive, counting(100 * i, 4)));
  TierControl& control = b.memory.control().tiers[0];
  control.lanes[0].head.store(control.tail.load());  // killed after moving the head
  reap(b.memory, kDead);
  EXPECT_EQ(numbers(b.alive.allocate(Tier::device, 7).value()), (Ids{1, 2, 3, 4, 5, 6, 7}));
}

/// A scan as a last resort would find the older blocks, too, but only when there is no newer one.
TEST(Reaper, IdleBlocksThatAKilledEvictorPassedAreEvictedBeforeNewerOnes) {
  Bench b(small_geometry(4));
  const Prompt old(b.alive, counting(0, 4)), newer(b.alive, counting(100, 4));
  leave_idle(b.alive, old);  // block 1
  TierControl& control = b.memory.control().tiers[0];
  control.lanes[0].head.store(
      control.tail.load());    // killed after moving the head, before taking the block
  leave_idle(b.alive, newer);  // block 2
  reap(b.memory, kDead);
  EXPECT_EQ(numbers(b.alive.allocate(Tier::device, 2).value()), (Ids{3, 1}));
  EXPECT_EQ(match_all(b.alive, newer).blocks.size(), 1u);
}

TEST(Reaper, StaleHintOfAKilledEvictionIsHarmless) {
  Bench b(small_geometry(2));
  const Prompt prompt(b.dead, counting(0, 4));
  leave_idle(b.dead, prompt);
  // Killed right after taking the block: the index still names it.
  auto& word = b.memory.descriptors()[1].word;
  const BlockWord idle{word.load()};
  word.store(BlockWord::make(BlockState::filling, idle.generation() + 1, 1).bits);
  b.dead.counters().used[0].fetch_add(1);
  reap(b.memory, kDead);
  EXPECT_THAT(match_all(b.alive, prompt).blocks, IsEmpty());
  leave_idle(b.alive, Prompt(b.alive, counting(100, 4)));
  EXPECT_THAT(match_all(b.alive, prompt).blocks, IsEmpty());
}

}  // namespace
}  // namespace kvhive::testing
