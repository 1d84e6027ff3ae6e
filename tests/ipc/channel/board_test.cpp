#include "ipc/channel/board.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/board.hpp"

namespace kvhive::testing {
namespace {

TEST(SlotStates, AWordKeepsNumberPhaseAndOwner) {
  const EngineLife owner{30, kMostLives};
  const SlotState state = SlotState::of(~0u, Phase::preempted, owner);
  EXPECT_EQ(state.number, ~0u);
  EXPECT_EQ(state.phase(), Phase::preempted);
  EXPECT_EQ(state.owner(), owner);
  EXPECT_EQ(state.in(Phase::finished), SlotState::of(~0u, Phase::finished, owner));
  EXPECT_EQ(SlotState{}, SlotState::of(0, Phase::finished, {}));
}

TEST(SlotStates, LivesBeginAgain) {
  EXPECT_EQ(next_life(0), 1u);
  EXPECT_EQ(next_life(kMostLives), 1u);
}

TEST(Boards, AnEngineIsDeadFromItsEndOn) {
  TestBoard board;
  const EngineLife first = board.join().life;
  EXPECT_FALSE(board->is_dead(first));
  const EngineLife second = board.join().life;
  EXPECT_TRUE(board->is_dead(first));
  EXPECT_FALSE(board->is_dead(second));
  EXPECT_FALSE(board->is_dead({first.slot, second.life + 1})) << "it is not heard of yet";
  EXPECT_TRUE(board->is_dead({first.slot, 0})) << "nobody";
}

TEST(Boards, TheDeadOfTheLastRoundOfLivesStayDead) {
  std::array<BoardRow, kMaxProcesses> rows{};
  const Board board(rows);
  rows[3].ended = 1;  // of the new round
  EXPECT_TRUE(board.is_dead({3, kMostLives}));
  EXPECT_TRUE(board.is_dead({3, 1}));
  EXPECT_FALSE(board.is_dead({3, 2}));
}

TEST(Boards, AttachedBoardsSeeEachOtherAndTheKeepersWrites) {
  const UniqueFd file = create_memory(kBoardName, kBoardBytes).value();
  Board mine = Board::attach(file).value();
  const Board others = Board::attach(file).value();
  const EngineLife self{2, 7};
  mine.serve(self, {5, 1});
  EXPECT_EQ(others.turn(0), self);
  EXPECT_EQ(others.load_of(self), (EngineLoad{5, 1}));
  ASSERT_TRUE(write_end(file, self));
  EXPECT_TRUE(others.is_dead(self));
  EXPECT_EQ(others.turn(0), std::nullopt);
}

/// How many of `requests` each engine takes at once.
std::map<std::uint32_t, int> shares(const TestBoard& board, const std::vector<Member>& engines,
                                    int requests) {
  std::map<std::uint32_t, int> taken;
  for (int ticket = 0; ticket < requests; ++ticket)
    for (const Member& engine : engines)
      if (board->is_for(engine, std::uint64_t(ticket))) ++taken[engine.number];
  return taken;
}

TEST(Boards, EnginesTakeTurns) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 4), board.join(2, 9)};
  EXPECT_EQ(shares(board, engines, 300),
            (std::map<std::uint32_t, int>{{0, 100}, {1, 100}, {2, 100}}));
  board.end(4);
  EXPECT_EQ(shares(board, {engines[0], engines[2]}, 300),
            (std::map<std::uint32_t, int>{{0, 150}, {2, 150}}));
}

TEST(Boards, AMuchBusierEngineLeavesItsTurnsToOneThatHasRoom) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  const std::uint32_t step = engines[0].tokens_per_step;
  board->tell_load(engines[0].life, {64, step});
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "a step more is not much";
  board->tell_load(engines[0].life, {64, 2 * step});
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  board->tell_load(engines[0].life, {0, 0});
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  board->tell_load(engines[1].life, {0, 0});
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "nobody has room";
}

}  // namespace
}  // namespace kvhive::testing
