#include "pool/eviction/eviction_journal.hpp"

#include <gmock/gmock.h>

#include <ctime>

#include "pool/block_pool.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::IsEmpty;

TEST(EvictionJournal, RecordsEvictionsInOrderWithTheirProcessSlot) {
  const PoolMemory memory = private_pool(small_geometry(5));
  BlockPool first(memory, ProcessSlot{3}), second(memory, ProcessSlot{30});
  const Prompt a(first, counting(0, 8)), b(first, counting(100, 8));
  leave_idle(first, a);
  leave_idle(first, b);
  const EvictionJournal journal(memory);
  EXPECT_THAT(journal.read(), IsEmpty());

  first.release(first.allocate(Tier::device, 1).value());
  second.release(second.allocate(Tier::device, 4).value());
  const auto records = journal.read();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_TRUE(records[0].is_of(a.chain[1])) << "the end of a sequence goes first";
  EXPECT_TRUE(records[1].is_of(a.chain[0]));
  EXPECT_TRUE(records[2].is_of(b.chain[1]));
  EXPECT_TRUE(records[3].is_of(b.chain[0]));
  EXPECT_FALSE(records[3].is_of(b.chain[1]));
  EXPECT_EQ(records[0].slot, 3u);
  EXPECT_EQ(records[3].slot, 30u);
  for (const DepartureRecord& record : records) {
    EXPECT_EQ(record.kind, Departure::evicted);
    EXPECT_NEAR(double(record.unix_ms), double(std::time(nullptr)) * 1000, 5000);
  }
  EXPECT_FALSE(journal.has_forgotten());
}

TEST(EvictionJournal, KeepsFourForEachBlockAndThenForgetsTheOldest) {
  const PoolMemory memory = private_pool(small_geometry(4));
  BlockPool pool(memory, ProcessSlot{0});
  const EvictionJournal journal(memory);
  const std::size_t slots = memory.layout().journal_slots;
  EXPECT_GE(slots, 4 * 4u);
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < slots + 10 + 3; ++i)
    leave_idle(pool, prompts.emplace_back(pool, counting(TokenId(i) * 100, 4)));
  EXPECT_TRUE(journal.has_forgotten());
  const auto records = journal.read();
  ASSERT_EQ(records.size(), slots);
  EXPECT_TRUE(records.front().is_of(prompts[10].chain[0]));
  EXPECT_TRUE(records.back().is_of(prompts[slots + 9].chain[0]));
}

TEST(EvictionJournal, ATornRecordMatchesNoBlock) {
  const PoolMemory memory = private_pool(small_geometry(3));
  BlockPool pool(memory, ProcessSlot{0});
  const Prompt a(pool, counting(0, 8)), b(pool, counting(100, 8));
  leave_idle(pool, a);
  leave_idle(pool, b);
  // A torn record: the name of one departure, the rest of another.
  memory.journal()[0].hash_low.store(b.chain[0].low);
  for (const DepartureRecord& record : EvictionJournal(memory).read())
    EXPECT_FALSE(record.is_of(b.chain[0]));
  memory.control().next_departure.store(~0ull - 1);
  leave_idle(pool, a);
  leave_idle(pool, b);
  EXPECT_EQ(EvictionJournal(memory).read().size(), 4u) << "the counter wraps as the ring does";
}

}  // namespace
}  // namespace kvhive::testing
