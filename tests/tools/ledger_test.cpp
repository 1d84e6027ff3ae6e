#include "tools/keeper/succession/ledger.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <map>
#include <random>

#include "base/check.hpp"
#include "tests/support/child_process.hpp"
#include "tests/tools/no_tables.hpp"
#include "tools/keeper/steward_orders.hpp"

namespace kvhive::testing {
namespace {

using Kind = Ledger::Kind;

struct Row {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const Row&, const Row&) = default;
};

std::map<std::uint64_t, Row> rows_of(const Ledger& ledger, Kind kind = Kind::peer) {
  std::map<std::uint64_t, Row> rows;
  ledger.for_each<Row>(kind, [&](std::uint64_t key, const Row& row) { rows[key] = row; });
  return rows;
}

class LedgerTest : public ::testing::Test {
 protected:
  LedgerMemory memory_ = LedgerMemory::create().value();
};

TEST_F(LedgerTest, ASuccessorReadsTheLastCommitAndNothingLater) {
  Ledger ledger(memory_);
  ledger.put(Kind::peer, 1, Row{1, 1});
  ledger.put(Kind::peer, 2, Row{2, 2});
  ledger.commit();
  ledger.put(Kind::peer, 1, Row{1, 9});
  ledger.put(Kind::peer, 3, Row{3, 3});
  ledger.erase(Kind::peer, 2);
  const std::map<std::uint64_t, Row> before = {{1, {1, 1}}, {2, {2, 2}}};
  EXPECT_EQ(rows_of(Ledger(memory_)), before);
}

TEST_F(LedgerTest, ARowThatIsGoneDoesNotComeBack) {
  Ledger ledger(memory_);
  ledger.put(Kind::peer, 1, Row{1, 1});
  ledger.commit();
  ledger.erase(Kind::peer, 1);
  ledger.commit();
  EXPECT_TRUE(rows_of(Ledger(memory_)).empty());
  ledger.put(Kind::peer, 1, Row{2, 2});
  ledger.commit();
  EXPECT_EQ(rows_of(Ledger(memory_)).at(1), (Row{2, 2}));
}

TEST_F(LedgerTest, GrowsAndKeepsItsRows) {
  Ledger ledger(memory_);
  std::map<std::uint64_t, Row> all;
  for (std::uint64_t key = 0; key < 3000; ++key) {
    ASSERT_TRUE(ledger.make_room());
    ledger.put(Kind::peer, key, all[key] = Row{key, 1});
    ledger.commit();
  }
  EXPECT_EQ(rows_of(Ledger(memory_)), all);
}

/// A writer is killed at any moment, again and again; each reader is the next writer. Each commit
/// moves one unit from one row to another, and notes how many were moved.
TEST_F(LedgerTest, WhoeverIsKilledLeavesOneCommitWhole) {
  constexpr std::uint64_t kRows = 20, kEach = 1000;
  {
    Ledger ledger(memory_);
    for (std::uint64_t key = 0; key < kRows; ++key) ledger.put(Kind::peer, key, Row{kEach, 0});
    ledger.commit();
  }
  std::mt19937_64 random(7);
  std::uint64_t moved_before = 0;
  for (int round = 0; round < 60; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ChildProcess writer([&] {
      Ledger ledger(memory_);
      std::map<std::uint64_t, Row> rows = rows_of(ledger);
      std::mt19937_64 choice(static_cast<std::uint64_t>(round));
      while (true) {
        Row &from = rows[choice() % kRows], &to = rows[choice() % kRows];
        if (from.a == 0 || &from == &to) continue;
        --from.a;
        ++to.a;
        ++to.b;
        for (auto& [key, row] : rows)
          if (row.a == 0)
            ledger.erase(Kind::peer, key);
          else
            ledger.put(Kind::peer, key, row);
        ledger.commit();
        [[maybe_unused]] const ssize_t told = write(ends[1], "c", 1);
      }
    });
    char commits[64];
    for (std::uint64_t left = 1 + random() % 50; left > 0; --left)
      ASSERT_EQ(read(ends[0], commits, 1), 1);
    (void)writer.kill_and_wait();
    close(ends[0]);
    close(ends[1]);
    std::uint64_t sum = 0, moved = 0;
    for (const auto& [key, row] : rows_of(Ledger(memory_))) {
      sum += row.a;
      moved += row.b;
    }
    ASSERT_EQ(sum, kRows * kEach) << "half a commit, round " << round;
    ASSERT_GT(moved, moved_before);
    moved_before = moved;
  }
}

TEST_F(LedgerTest, APacketIsInTheInboxAsSoonAsItIsTakenAndUntilItIsDone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd sender(ends[0]), receiver(ends[1]);
  const UniqueFd sent(dup(0));
  ASSERT_TRUE(send_packet(sender.get(), Serving{}, {sent.get()}));
  Inbox& inbox = memory_.inbox();
  // As a keeper does that is killed when it has taken the packet.
  ChildProcess keeper([&] {
    Ledger ledger(memory_);
    inbox.packet.expect(next_packet_bytes(receiver.get()));
    inbox.handled_by = Inbox::kNever;
    KV_CHECK(!inbox.was_left_undone(ledger));
    KV_CHECK(receive_into(receiver.get(), inbox.packet));
    raise(SIGKILL);
  });
  keeper.wait();
  Ledger ledger(memory_);
  ASSERT_TRUE(inbox.was_left_undone(ledger));
  EXPECT_EQ(inbox.packet.descriptors().size(), 1u);
  EXPECT_TRUE(inbox.packet.header.type == MessageType::serving);
  EXPECT_GT(inbox.packet.bytes, 0u);
  inbox.handled_by = ledger.next();
  EXPECT_TRUE(inbox.was_left_undone(ledger)) << "what it has caused is not written down";
  ledger.commit();
  EXPECT_FALSE(inbox.was_left_undone(ledger));
  EXPECT_FALSE(inbox.was_left_undone(Ledger(memory_)));
}

/// A second order may be on its way when the first is answered.
TEST(OrphanEndsTest, TheLastEndOfAProcessIsKnown) {
  OrphanEnds ends;
  EXPECT_EQ(ends.status_of(4711), std::nullopt);
  ends.write(4711, 3 << 8);
  ends.write(4712, SIGKILL);
  EXPECT_EQ(ends.status_of(4711), 3 << 8);
  EXPECT_EQ(ends.status_of(4712), SIGKILL);
  ends.write(4711, SIGSEGV);
  EXPECT_EQ(ends.status_of(4711), SIGSEGV) << "the number was used again";
  for (pid_t pid = 1; pid <= 1000; ++pid) ends.write(pid, pid);
  EXPECT_EQ(ends.status_of(1000), 1000);
  EXPECT_EQ(ends.status_of(4711), std::nullopt) << "the last ones are kept";
}

TEST(StewardOrdersTest, OnlyTheAnswerToTheLastOrderCounts) {
  Tables tables = no_tables();
  tables.slots[3].use = Slot::Use::unswept;
  tables.order_sweep(3);
  Reaped first{.slot = 3};
  first.ticket = tables.slots[3].order;
  repeat_orders(tables);
  Reaped second{.slot = 3};
  second.ticket = tables.slots[3].order;
  EXPECT_TRUE(on_reaped(tables, first));
  EXPECT_EQ(tables.slots[3].use, Slot::Use::unswept);
  EXPECT_TRUE(on_reaped(tables, second));
  EXPECT_EQ(tables.slots[3].use, Slot::Use::vacant);
  tables.slots[3].use = Slot::Use::used;
  EXPECT_TRUE(on_reaped(tables, second));
  EXPECT_EQ(tables.slots[3].use, Slot::Use::used) << "a new engine's slot";
}

/// Else its next engine is taken for the one that has died, and others run its requests, too.
TEST(StewardOrdersTest, ASweptSlotKeepsTheCountOfItsLives) {
  Tables tables = no_tables();
  tables.slots[3] = {.use = Slot::Use::unswept, .life = 7, .last_owner = "engine 0 (pid 4711)"};
  tables.order_sweep(3);
  EXPECT_TRUE(on_reaped(tables, {.slot = 3, .ticket = tables.slots[3].order}));
  EXPECT_EQ(tables.slots[3].use, Slot::Use::vacant);
  EXPECT_EQ(tables.slots[3].life, 7u);
}

}  // namespace
}  // namespace kvhive::testing
