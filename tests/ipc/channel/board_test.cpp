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
  EXPECT_EQ(others.turn(self, {}), self);
  EXPECT_EQ(others.load_of(self), (EngineLoad{5, 1}));
  ASSERT_TRUE(write_end(file, self));
  EXPECT_TRUE(others.is_dead(self));
  EXPECT_EQ(others.turn(self, {}), std::nullopt);
}

bool is_for(const TestBoard& board, const Member& self, const RequestName& request,
            const Since& since = {}, bool was_left = false) {
  return board->choose(self, request, since, was_left) == Choice::take;
}

/// How many of `requests` each engine takes at once.
std::map<std::uint32_t, int> shares(const TestBoard& board, const std::vector<Member>& engines,
                                    int requests) {
  std::map<std::uint32_t, int> taken;
  for (int ticket = 0; ticket < requests; ++ticket)
    for (const Member& engine : engines)
      if (is_for(board, engine, {1, std::uint32_t(ticket), 1})) ++taken[engine.number];
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

TEST(Boards, EnginesOfAnotherModelHaveNoTurns) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 4)};
  const std::vector<Member> others{board.join(2, 1, {64, 0}, ModelId{1}),
                                   board.join(3, 5, {64, 0}, ModelId{1}),
                                   board.join(4, 6, {64, 0}, ModelId{1})};
  EXPECT_EQ(shares(board, engines, 300), (std::map<std::uint32_t, int>{{0, 150}, {1, 150}}));
  EXPECT_EQ(shares(board, others, 300),
            (std::map<std::uint32_t, int>{{2, 100}, {3, 100}, {4, 100}}));
}

TEST(Boards, TellWhetherAnEngineThatLivesLacksBlocks) {
  TestBoard board;
  const EngineLife one = board.join(0, 0).life, other = board.join(1, 1).life;
  const Lack all{0, true};
  EXPECT_EQ(board->others_lack(one), Lack{});
  board->tell_lack(other, all);
  EXPECT_EQ(board->others_lack(one), all);
  EXPECT_EQ(board->others_lack(other), Lack{}) << "it knows itself";
  board.end(1);
  EXPECT_EQ(board->others_lack(one), Lack{});
  const EngineLife next = board.join(1, 1).life;
  EXPECT_EQ(board->others_lack(one), Lack{});
  board->tell_lack(next, all);
  EXPECT_EQ(board->others_lack(one), all);
  board->tell_lack(next, {});
  EXPECT_EQ(board->others_lack(one), Lack{});
}

TEST(Boards, TellForWhomBlocksLackAtAnyEngine) {
  TestBoard board;
  const EngineLife one = board.join(0, 0).life;
  Lack third, eighth;
  third.add(3);
  eighth.add(8);
  board->tell_lack(board.join(1, 1).life, third);
  board->tell_lack(board.join(2, 2).life, eighth);
  const Lack both = board->others_lack(one);
  for (std::size_t lane = 0; lane < 15; ++lane)
    EXPECT_EQ(both.has(lane), lane == 3 || lane == 8) << lane;
  EXPECT_FALSE(both.of_all);
}

/// It needs no blocks before it goes on, and then it tells again.
TEST(Boards, AnEngineThatIsStoppedLacksNothingAfterAWhile) {
  TestBoard board;
  const EngineLife one = board.join(0, 0).life, other = board.join(1, 1).life;
  const Lack all{0, true};
  board->tell_lack(other, all);
  EXPECT_EQ(board->others_lack(one, 1), all);
  EXPECT_EQ(board->others_lack(one, Board::kLackIsBelieved), all);
  EXPECT_EQ(board->others_lack(one, Board::kLackIsBelieved + 1), Lack{});
  board->tell_lack(other, all);
  EXPECT_EQ(board->others_lack(one, Board::kLackIsBelieved + 2), all);
}

TEST(Boards, AMuchBusierEngineLeavesItsTurnsToOneThatHasRoom) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  const std::uint32_t step = engines[0].tokens_per_step;
  board->tell_load(engines[0].life, {64, step}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "a step more is not much";
  board->tell_load(engines[0].life, {64, 2 * step}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  board->tell_load(engines[0].life, {0, 0}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  board->tell_load(engines[1].life, {0, 0}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "nobody has room";
}

TEST(Boards, AnEngineWithAFullQueueLeavesItsTurnsToOneThatCanLetThemWait) {
  TestBoard board;
  std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  board->tell_load(engines[0].life, {0, 80}, 0);
  board->tell_load(engines[1].life, {0, 40}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "any number may wait";
  for (Member& engine : engines) engine.most_queued = 100;
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  board->tell_load(engines[1].life, {0, 60}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{0, 50}, {1, 50}}))
      << "it is as good as full, too";
}

/// Else they would go round all engines together.
TEST(Boards, StreamsThatEndTogetherGoToDifferentEngines) {
  TestBoard board;
  for (std::uint32_t i = 0; i < 4; ++i) board.join(i, i);
  std::vector<std::uint32_t> together;  // slots whose first request is engine 0's
  for (std::uint32_t slot = 0; slot < 64; ++slot)
    if (board->turn({}, {1, slot, 1})->slot == 0) together.push_back(slot);
  ASSERT_EQ(together.size(), 16u);
  std::map<std::uint32_t, int> next;
  for (const std::uint32_t slot : together) ++next[board->turn({}, {1, slot, 2})->slot];
  EXPECT_GE(next.size(), 3u);
  for (const auto& [engine, count] : next) EXPECT_LE(count, 8) << engine;
}

TEST(Boards, AnEngineWithManyMoreRequestsLeavesTurnsToOneWithFew) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  board->tell_load(engines[0].life, {60, 0}, 0);
  EXPECT_EQ(shares(board, engines, 100), (std::map<std::uint32_t, int>{{1, 100}}));
  const RequestName firsts{1, board->turn({}, {1, 0, 1})->slot == 0 ? 0u : 1u, 1};
  EXPECT_FALSE(is_for(board, engines[0], firsts));
  EXPECT_TRUE(is_for(board, engines[0], firsts, {.left = 1})) << "then both have nearly as many";
  board->take(engines[1].life);
  board->take(engines[1].life);
  EXPECT_TRUE(is_for(board, engines[1], firsts));
  board->take(engines[1].life);
  EXPECT_FALSE(is_for(board, engines[1], firsts));
  board->take_back(engines[1].life, 1);
  EXPECT_TRUE(is_for(board, engines[1], firsts));
  board->tell_load(engines[1].life, {61, 0}, 2);
  EXPECT_FALSE(is_for(board, engines[1], firsts)) << "what it took is counted, with another";
}

TEST(Boards, AnEngineWithRoomTakesATurnThatItHasLeftAndOneWithoutDoesNot) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  const RequestName request{1, board->turn({}, {1, 0, 1})->slot == 0 ? 0u : 1u, 1};
  board->tell_load(engines[0].life, {20, 0}, 0);
  EXPECT_FALSE(is_for(board, engines[0], request));
  EXPECT_TRUE(is_for(board, engines[0], request, {}, true));
  board->tell_load(engines[0].life, {0, 0}, 0);
  EXPECT_FALSE(is_for(board, engines[0], request, {}, true));
}

/// Its turns fill it, as it sees them; one that was left does not count any more.
TEST(Boards, AnEngineWithRoomForOneTakesATurnThatItHasLeft) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0, {1, 0}), board.join(1, 1, {5, 0})};
  const RequestName request{1, board->turn({}, {1, 0, 1})->slot == 0 ? 0u : 1u, 1};
  Since since;
  since.rooms = board->rooms_after(engines[0].life, std::span(&request, 1));
  EXPECT_EQ(board->choose(engines[0], request, since), Choice::doubt);
  EXPECT_EQ(board->choose(engines[0], request, since, true), Choice::take);
}

TEST(Boards, ATurnOfAnEngineThatMayBeFullByNowIsLeftInDoubtByOneThatIsNot) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0, {2, 0}), board.join(1, 1, {2, 0})};
  const RequestName request{1, board->turn({}, {1, 0, 1})->slot == 0 ? 0u : 1u, 1};
  const auto choice = [&](std::uint32_t room, std::uint32_t others) {
    board->tell_load(engines[0].life, {others, 0}, 0);
    board->tell_load(engines[1].life, {room, 0}, 0);
    Since since;
    since.rooms = board->rooms_after(engines[1].life, std::span(&request, 1));
    return board->choose(engines[1], request, since);
  };
  EXPECT_EQ(choice(2, 2), Choice::doubt);
  EXPECT_EQ(choice(2, 1), Choice::take);
  EXPECT_EQ(choice(2, 9), Choice::leave);
  EXPECT_EQ(choice(0, 2), Choice::leave) << "it cannot take it either";
}

/// Else who is late would get its own turns and others', and the others fewer.
TEST(Boards, InABurstEachEngineIsExpectedToTakeItsTurns) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  for (int i = 0; i < 30; ++i) board->take(engines[0].life);
  const RequestName firsts{1, board->turn({}, {1, 0, 1})->slot == 0 ? 0u : 1u, 1};
  const RequestName others{1, 1 - firsts.slot, 1};
  EXPECT_FALSE(is_for(board, engines[0], firsts));
  EXPECT_TRUE(is_for(board, engines[1], firsts));
  std::vector<RequestName> turns;  // of the other one
  for (std::uint32_t slot = others.slot; turns.size() < 30; slot += 1)
    if (board->turn({}, {1, slot, 1})->slot == 1) turns.push_back({1, slot, 1});
  Since since;
  since.rooms = board->rooms_after(engines[0].life, turns);
  EXPECT_TRUE(is_for(board, engines[0], firsts, since));
  EXPECT_FALSE(is_for(board, engines[1], firsts, since));
  EXPECT_FALSE(is_for(board, engines[0], others, since));
  EXPECT_TRUE(is_for(board, engines[1], others, since));
}

/// It hears, and is as full or as empty as it was.
TEST(Boards, AnEngineThatHangsHasNoTurnsUnlessAllDo) {
  TestBoard board;
  const std::array engines{board.join(0, 0), board.join(1, 1)};
  const auto turns_of = [&](const Member& engine) {
    int turns = 0;
    for (std::uint32_t slot = 0; slot < 10; ++slot) turns += is_for(board, engine, {5, slot, 1});
    return turns;
  };
  const auto five_seconds = [&] {
    for (int i = 0; i <= Board::kMostLooks; ++i) {
      for (const Member& engine : engines) board->hear(engine.life);
      board->look();
    }
  };
  board->tell_load(engines[0].life, {64, 0}, 0, false);
  five_seconds();
  EXPECT_EQ(turns_of(engines[0]), 5) << "it has nothing to do";
  board->tell_load(engines[0].life, {64, 0}, 0, true);
  board->tell_load(engines[1].life, {0, 5000}, 0, true);
  board->beat(engines[1].life);
  board->look();
  EXPECT_TRUE(board->hangs(engines[0].life));
  EXPECT_EQ(turns_of(engines[0]), 0) << "nor does it take what another has less room for";
  EXPECT_EQ(turns_of(engines[1]), 10);
  board->tell_load(engines[1].life, {64, 0}, 0, true);
  five_seconds();
  EXPECT_EQ(turns_of(engines[0]) + turns_of(engines[1]), 10) << "all steps take so long";
  EXPECT_EQ(turns_of(engines[0]), 5);
  board->beat(engines[0].life);
  board->look();
  EXPECT_EQ(turns_of(engines[0]), 10) << "it goes on, and the other hangs";
}

TEST(Boards, AnEngineThatDoesNotHearHasNoTurns) {
  TestBoard board;
  const std::vector<Member> engines{board.join(0, 0), board.join(1, 1)};
  board->tell_load(engines[0].life, {0, 0}, 0);  // the other one has room, and says so for ever
  for (int i = 0; i <= Board::kLooks; ++i) {
    EXPECT_FALSE(board->is_deaf(engines[1].life));
    board->hear(engines[0].life);
    board->look();
  }
  EXPECT_TRUE(board->is_deaf(engines[1].life));
  EXPECT_FALSE(board->is_deaf(engines[0].life));
  EXPECT_EQ(shares(board, {engines[0]}, 100), (std::map<std::uint32_t, int>{{0, 100}}));
  EXPECT_TRUE(board->turn(engines[1].life, {}).has_value()) << "itself it hears";
  board->hear(engines[1].life);
  board->look();
  EXPECT_EQ(shares(board, {engines[0]}, 100), (std::map<std::uint32_t, int>{}));
}

}  // namespace
}  // namespace kvhive::testing
