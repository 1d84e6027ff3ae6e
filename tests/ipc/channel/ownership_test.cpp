// Several engines that have one channel open: who has a request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <set>

#include "base/check.hpp"
#include "ipc/channel/client_channel.hpp"
#include "ipc/channel/engine_channel.hpp"
#include "tests/support/board.hpp"
#include "tests/support/channel_memory.hpp"
#include "tests/support/request.hpp"

namespace {

/// Called once, after the next pread() of this process: what others do while an engine is held up
/// there.
std::function<void()> after_pread;
std::size_t preads = 0;

}  // namespace

/// Instead of the C library's.
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  const ssize_t count = syscall(SYS_pread64, fd, to, bytes, at);
  ++preads;
  if (const auto happens = std::exchange(after_pread, nullptr)) happens();
  return count;
}

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kBytes = kLeastChannelBytes;
constexpr std::size_t kAll = ~std::size_t{0};
constexpr std::size_t kHelp = 64;

class OwnershipTest : public ::testing::Test {
 protected:
  std::shared_ptr<EngineChannel> join(std::uint32_t slot) {
    return EngineChannel::open(5, board_.join(slot, slot), copy_of(memory_.requests),
                               memory_.answers, kBytes, direct_ring(copy_of(bell_.engine_end)))
        .value();
  }
  std::uint32_t submit() {
    ChannelRequest request;
    request.prompt_tokens = counting(100, 3);
    request.params.max_tokens = 4;
    return client_.submit(request).value();
  }
  void submit_many(int count) {
    for (int i = 0; i < count; ++i) submit();
  }
  /// \param help  not 0: as if no other engine had done anything for a while
  std::vector<TakenRequest> take(EngineChannel& engine, std::size_t help = 0) {
    if (help != 0) look(Board::kLooks + 1);
    return engine.take_submitted({}, kAll, help);
  }
  /// All engines hear.
  void look(int times = 1) {
    for (int i = 0; i < times; ++i) {
      for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) board_->hear({slot, 1});
      board_->look();
    }
  }
  static std::set<std::uint32_t> slots_of(const std::vector<TakenRequest>& taken) {
    std::set<std::uint32_t> slots;
    for (const TakenRequest& request : taken) slots.insert(request.slot);
    return slots;
  }
  void is_full(std::uint32_t slot) { board_->tell_load({slot, 1}, {0, 0}, 0); }
  void has_served(std::uint32_t slot) { board_->serve({slot, 1}, {kHelp, 0}); }
  void end(EngineChannel& engine, const TakenRequest& request) {
    const auto sink = engine.sink(request);
    ASSERT_TRUE(sink->start());
    sink->finished(FinishReason::length, {}, {}, 0);
    EXPECT_EQ(client_.read(request.slot).reason, FinishReason::length);
  }
  static void let_a_doubt_grow_old() {
    const auto left = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() < left + Board::kLeftFor) continue;
  }
  bool is_rung() {
    char heard[64];
    return recv(bell_.client_end.get(), heard, sizeof heard, MSG_DONTWAIT) > 0;
  }

  TestBoard board_;
  ChannelMemory memory_ = make_channel_memory(kBytes);
  ClientBell bell_ = make_client_bell().value();
  ClientChannel client_ = ClientChannel::open(copy_of(memory_.requests), memory_.answers, kBytes,
                                              make_engine_bell().value())
                              .value();
  std::shared_ptr<EngineChannel> one_ = join(0), other_ = join(1);
};

TEST_F(OwnershipTest, EnginesTakeRequestsInTurnAndEachOnce) {
  submit_many(8);
  const auto first = slots_of(take(*one_)), second = slots_of(take(*other_));
  EXPECT_THAT(first, SizeIs(4));
  EXPECT_THAT(second, SizeIs(4));
  std::set<std::uint32_t> all = first;
  all.insert(second.begin(), second.end());
  EXPECT_THAT(all, SizeIs(8));
}

/// Who comes first has more than the other then, which will take as many.
TEST_F(OwnershipTest, InABurstEachEngineTakesItsTurns) {
  submit_many(40);
  EXPECT_THAT(take(*one_), SizeIs(20));
  submit_many(40);
  EXPECT_THAT(take(*other_), SizeIs(40));
  EXPECT_THAT(take(*one_), SizeIs(20));
}

TEST_F(OwnershipTest, WhatIsLeftToAnotherIsTakenByWhoHelpsAndNotMore) {
  submit_many(8);
  EXPECT_THAT(take(*one_), SizeIs(4));
  EXPECT_TRUE(one_->watches());
  EXPECT_THAT(take(*one_, 3), SizeIs(3));
  EXPECT_TRUE(one_->watches());
  EXPECT_THAT(take(*one_, kHelp), SizeIs(1));
  EXPECT_FALSE(one_->watches());
  is_full(0);
  EXPECT_THAT(take(*other_, kHelp), SizeIs(8)) << "they wait there";
}

/// Rooms may change in between, so that each of two engines leaves a request to the other.
TEST_F(OwnershipTest, ATurnThatWasLeftToOneWithMoreRoomIsTakenIfThatOneDoesNot) {
  const EngineLife one{0, 1};
  const auto takes = [&] { return take(*one_).size(); };
  submit_many(4);
  board_->tell_load(one, {kHelp / 2, 0}, 0);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(takes(), 0u);
  EXPECT_TRUE(one_->doubts());
  const auto left = std::chrono::steady_clock::now();
  const std::size_t at_once = takes();
  if (std::chrono::steady_clock::now() < before + Board::kLeftFor) {
    EXPECT_EQ(at_once, 0u);
  }
  std::size_t early = 0;  // looks in between do not begin the time anew
  while (std::chrono::steady_clock::now() < left + Board::kLeftFor) early += takes();
  EXPECT_EQ(at_once + early + takes(), 2u);
  EXPECT_FALSE(one_->doubts()) << "the others' turns are not its own";
  EXPECT_THAT(take(*other_), SizeIs(2));
  submit_many(4);
  board_->tell_load(one, {kHelp / 2, 0}, 2);
  EXPECT_EQ(takes(), 0u) << "these have not been left yet";
  EXPECT_TRUE(one_->doubts());
}

TEST_F(OwnershipTest, EachRequestOfASlotIsLeftAnew) {
  for (std::uint32_t number = 1; number <= 20; ++number) {
    board_->tell_load({0, 1}, {kHelp / 2, 0}, number - 1);
    const std::uint32_t slot = submit();
    const bool is_its_turn = board_->turn({0, 1}, {5, slot, number})->slot == 0;
    ASSERT_THAT(take(*one_), IsEmpty()) << number;
    EXPECT_EQ(one_->doubts(), is_its_turn) << number;
    std::vector<TakenRequest> taken;
    while (is_its_turn && taken.empty()) taken = take(*one_);
    if (!is_its_turn) taken = take(*other_);
    ASSERT_THAT(taken, SizeIs(1));
    end(is_its_turn ? *one_ : *other_, taken[0]);
    if (!is_its_turn) board_->take({0, 1});  // so that both numbers go on together
  }
}

TEST_F(OwnershipTest, WhatAnEngineHadThatDiedIsLeftAnew) {
  const auto third = join(2);
  submit_many(9);
  is_full(0);
  EXPECT_THAT(take(*one_), IsEmpty());
  let_a_doubt_grow_old();
  EXPECT_THAT(take(*other_, kHelp), SizeIs(9));
  board_.end(1);
  board_->tell_load({0, 1}, {kHelp / 2, 0}, 0);
  EXPECT_THAT(take(*one_), IsEmpty());
  EXPECT_TRUE(one_->doubts());
}

TEST_F(OwnershipTest, ADoubtOutlivesALookAtTheOtherSlots) {
  submit_many(8);
  board_->tell_load({0, 1}, {kHelp / 2, 0}, 0);
  EXPECT_THAT(one_->take_submitted({}, 1, 0), IsEmpty());
  EXPECT_TRUE(one_->doubts());
  submit_many(8);
  board_->tell_load({0, 1}, {kHelp, 0}, 0);
  EXPECT_THAT(one_->take_submitted({}, 1, 0), SizeIs(1));
  EXPECT_TRUE(one_->doubts());
}

/// The slots before the one that waits are not looked at meanwhile: it would be for nothing.
TEST_F(OwnershipTest, ADoubtEndsWhileAnotherRequestWaitsForMemory) {
  ChannelRequest request;
  request.prompt_tokens = counting(100, 3);
  ASSERT_TRUE(client_.submit(request));
  std::byte* const raw = client_.raw_requests().data();
  const RequestBody small = body_in(raw, 0);
  RequestBody large = small;
  large.prompt.bytes = kBytes / 2;
  std::uint32_t last = 100;
  std::vector<TakenRequest> held = take(*one_, kHelp);
  const auto hold = [&] {
    auto taken = take(*one_, kHelp);
    for (TakenRequest& one : taken) held.push_back(std::move(one));
    return !taken.empty();
  };
  do submit_raw(raw, ++last, large);
  while (hold());
  std::uint32_t taken = static_cast<std::uint32_t>(held.size());
  held.pop_back();
  ASSERT_TRUE(hold()) << "there is no memory left now";
  ++taken;
  const auto its_turn_from = [&](std::uint32_t slot) {
    while (board_->turn({0, 1}, {5, slot, 1})->slot != 0) ++slot;
    return slot;
  };
  const std::uint32_t before = its_turn_from(last + 1), waits = its_turn_from(before + 1);
  board_->tell_load({0, 1}, {kHelp / 2, 0}, taken);
  submit_raw(raw, waits, large);
  EXPECT_THAT(take(*one_), IsEmpty());
  let_a_doubt_grow_old();
  submit_raw(raw, before, small);
  EXPECT_THAT(take(*one_), IsEmpty());
  EXPECT_TRUE(one_->doubts());
  EXPECT_THAT(take(*one_), IsEmpty());
  EXPECT_FALSE(one_->doubts());
}

/// A client may have many of them, which are looked at again and again.
TEST_F(OwnershipTest, WhatIsLeftIsNotRead) {
  is_full(0);
  for (std::size_t slot = 0; slot < 64; ++slot)
    submit_raw(client_.raw_requests().data(), slot, RequestBody{});
  preads = 0;
  EXPECT_THAT(take(*one_), IsEmpty());
  EXPECT_EQ(preads, 1u);
}

TEST_F(OwnershipTest, WhatHasEndedWhileAnEngineWasHeldUpIsNotTakenAgain) {
  const auto serve = [this](std::uint32_t slot) {
    const auto taken = take(*other_, kHelp);
    ASSERT_THAT(taken, SizeIs(1));
    ASSERT_EQ(taken[0].slot, slot);
    end(*other_, taken[0]);
  };
  const std::uint32_t slot = submit();
  after_pread = [&] {
    serve(slot);
    ASSERT_EQ(submit(), slot);
    serve(slot);
  };
  EXPECT_THAT(take(*one_, kHelp), IsEmpty())
      << "its marks say 1, and the slot says that 2 has ended";
  EXPECT_FALSE(after_pread) << "it was held up";
  EXPECT_THAT(take(*other_, kHelp), IsEmpty()) << "request 2 is run again";
  EXPECT_EQ(submit(), slot);
  EXPECT_THAT(take(*one_, kHelp), SizeIs(1));
}

TEST_F(OwnershipTest, AnEngineThatLostARequestWhileItWaitedForgetsIt) {
  submit();
  const auto mine = take(*one_, kHelp);
  ASSERT_THAT(mine, SizeIs(1));
  int changes = 0;
  one_->on_change([&] { ++changes; });
  const auto theirs = take(*other_, kHelp);
  ASSERT_THAT(theirs, SizeIs(1));
  EXPECT_EQ(theirs[0].tokens, mine[0].tokens);

  const auto lost = one_->sink(mine[0]);
  EXPECT_FALSE(lost->start());
  EXPECT_EQ(changes, 1) << "the other may be stopped: look again";
  EXPECT_FALSE(lost->read());
  lost->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_EQ(client_.read(mine[0].slot).reason, FinishReason::none);

  const auto sink = other_->sink(theirs[0]);
  EXPECT_TRUE(sink->start());
  sink->token({7, 0, {}}, "x");
  sink->finished(FinishReason::length, {}, {}, 1);
  const ChannelProgress end = client_.read(mine[0].slot);
  EXPECT_THAT(end.tokens, SizeIs(1));
  EXPECT_EQ(end.reason, FinishReason::length);
}

/// The slot's word is then as it was.
TEST_F(OwnershipTest, ARequestThatCameBackIsNotTheOneThatWasLost) {
  submit();
  const auto first = take(*one_, kHelp);
  ASSERT_THAT(take(*other_, kHelp), SizeIs(1));
  is_full(1);
  const auto again = take(*one_, kHelp);
  ASSERT_THAT(again, SizeIs(1));
  const auto lost = one_->sink(first[0]), kept = one_->sink(again[0]);
  lost->finished(FinishReason::abort, {}, {}, 0);
  EXPECT_FALSE(lost->start());
  EXPECT_EQ(client_.read(first[0].slot).reason, FinishReason::none);
  EXPECT_TRUE(kept->start());
}

TEST_F(OwnershipTest, WhatRunsIsPreemptedOrReadIsLeftToItsEngine) {
  submit();
  const auto taken = take(*one_, kHelp);
  const auto sink = one_->sink(taken.at(0));
  ASSERT_TRUE(sink->read());
  EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  EXPECT_TRUE(other_->watches()) << "it may wait again";
  sink->wait();
  ASSERT_TRUE(sink->start());
  EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  EXPECT_FALSE(other_->watches());
  sink->preempted();
  EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  EXPECT_TRUE(sink->start());
}

TEST_F(OwnershipTest, ADeadEnginesRequestGoesOnAtAnotherInTurn) {
  submit_many(2);
  for (const TakenRequest& request : take(*one_, kHelp)) {
    const auto sink = one_->sink(request);
    ASSERT_TRUE(sink->start());
    sink->token({7, 0, {}}, "x");
  }
  EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  is_rung();
  board_.end(0);
  const auto taken = take(*other_);
  ASSERT_THAT(taken, SizeIs(2));
  for (const TakenRequest& request : taken) EXPECT_THAT(request.journal, ElementsAre(7));
  EXPECT_TRUE(is_rung()) << "the dead one may not have";
}

TEST_F(OwnershipTest, TheDeadEnginesRequestsAreShared) {
  submit_many(8);
  const auto third = join(2);
  EXPECT_THAT(take(*third, kHelp), SizeIs(8));
  board_.end(2);
  EXPECT_THAT(take(*one_), SizeIs(4));
  EXPECT_TRUE(one_->watches());
  EXPECT_THAT(take(*other_), SizeIs(4));
}

TEST_F(OwnershipTest, ARequestWhoseEngineDiedWhileItReadItIsReadAnew) {
  const std::uint32_t slot = submit();
  auto answers = map_answers(memory_, kBytes);
  AnswerSlot& answer = answer_in(answers.data(), slot);
  answer.tokens = 3;  // of the request before
  answer.state = SlotState::of(1, Phase::reading, {0, 1});
  EXPECT_THAT(client_.read(slot).tokens, IsEmpty());
  board_.end(0);
  const auto taken = take(*other_);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].tokens, counting(100, 3));
  EXPECT_THAT(taken[0].journal, IsEmpty());
}

TEST_F(OwnershipTest, AnEndThatADeadEngineMayNotHaveRungIsRungOnce) {
  submit();
  const auto taken = take(*one_, kHelp);
  one_->sink(taken.at(0))->finished(FinishReason::length, {}, {}, 0);  // and no flush()
  take(*other_, kHelp);
  EXPECT_FALSE(is_rung()) << "its engine lives, and will";
  board_.end(0);
  take(*other_);
  EXPECT_TRUE(is_rung());
  take(*other_);
  EXPECT_FALSE(is_rung());
}

/// It may never go on, although it hears.
TEST_F(OwnershipTest, WhatWaitsAtAStuckEngineIsTakenByWhoHasRoomAndLittleToDo) {
  submit_many(4);
  EXPECT_THAT(take(*one_, kHelp), SizeIs(4));
  has_served(0);  // so it says
  EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  look(Board::kMostLooks);
  board_->tell_load({1, 1}, {kHelp, 4096}, 0);
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), IsEmpty()) << "it has enough to do";
  board_->tell_load({1, 1}, {4, 100}, 0);
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(4)) << "it has room";
}

/// Others are full for as long as clients want, and what waits with them is not behind what waits
/// there.
TEST_F(OwnershipTest, WhatWaitsAtAnEngineThatHangsIsTakenWithoutRoomAndItTakesNothing) {
  submit_many(4);
  EXPECT_THAT(take(*one_, kHelp), SizeIs(4));
  const EngineLife one{0, 1}, other{1, 1};
  board_->tell_load(one, {kHelp, 0}, 0, true);
  board_->tell_load(other, {0, 5000}, 0, true);
  for (int i = 0; i <= Board::kMostLooks; ++i) {
    board_->beat(other);
    look();
  }
  submit_many(4);
  EXPECT_THAT(one_->take_submitted({}, kAll, kHelp), IsEmpty());
  EXPECT_THAT(other_->take_submitted({}, kAll, 0), SizeIs(8));
  EXPECT_THAT(one_->take_submitted({}, kAll, kHelp), IsEmpty()) << "it takes nothing back";
}

TEST_F(OwnershipTest, ADeadEnginesTurnsAreNotAllTakenByWhoHasMoreRoomByAFew) {
  const auto third = join(2);
  submit_many(30);
  EXPECT_THAT(take(*third, kHelp), SizeIs(30));
  board_.end(2);
  board_->tell_load({1, 1}, {kHelp - 3, 0}, 0);
  EXPECT_THAT(take(*one_), SizeIs(::testing::Le(17)));
}

/// It hears, and no step ends.
TEST_F(OwnershipTest, WhatWaitsAtAnEngineInALongStepIsServedByThoseThatHaveFewer) {
  submit_many(4);
  EXPECT_THAT(take(*one_), SizeIs(2));
  EXPECT_THAT(take(*other_), SizeIs(2));
  EXPECT_THAT(take(*other_, kHelp), IsEmpty()) << "it has as many, and may be in a long step, too";
  for (int i = 0; i < 2; ++i) {
    has_served(1);
    EXPECT_THAT(take(*other_, kHelp), SizeIs(1)) << "then both have as many";
  }
}

/// What it has told of itself is as old as its step.
TEST_F(OwnershipTest, WhatWaitsAtAnEngineInALongStepIsNotAllTakenByLookingOften) {
  submit_many(8);
  EXPECT_THAT(take(*one_, kHelp), SizeIs(8));
  EXPECT_THAT(take(*other_, kHelp), SizeIs(4)) << "then both have as many";
  for (int i = 0; i < 5; ++i) EXPECT_THAT(take(*other_, kHelp), IsEmpty());
  has_served(0);
  EXPECT_THAT(take(*other_, kHelp), IsEmpty()) << "it has counted them, and more have ended";
}

/// Others have no room, and it seems to have some, for ever: what waits has to wait at one that
/// goes on.
TEST_F(OwnershipTest, AStoppedEnginesTurnsAndWhatWaitsThereAreTakenWithoutRoom) {
  submit_many(4);
  EXPECT_THAT(take(*one_), SizeIs(2));  // and now it is stopped
  const EngineLife other{1, 1};
  board_->tell_load(other, {0, 0}, 0);
  EXPECT_THAT(take(*other_), IsEmpty()) << "the other one has room";
  for (int i = 0; i <= Board::kLooks; ++i) {
    board_->hear(other);
    board_->look();
  }
  EXPECT_THAT(take(*other_), SizeIs(4));
}

TEST_F(OwnershipTest, AnEngineThatIsOnlyLateKeepsItsTurns) {
  submit_many(4);
  EXPECT_THAT(take(*other_), SizeIs(2));
  const EngineLife one{0, 1};
  board_->tell_load(one, {kHelp, 0}, 0);
  look();
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), IsEmpty()) << "it has as much room";
  EXPECT_TRUE(other_->watches());
  board_->tell_load(one, {kHelp - 1, 0}, 0);
  look();
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(1)) << "then both have as much";
  look(Board::kLooks);
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(1)) << "it does nothing";
}

TEST_F(OwnershipTest, WhatAnEngineThatGoesOnNeverTakesIsTakenInTheEnd) {
  submit_many(4);
  EXPECT_THAT(take(*other_), SizeIs(2));
  const EngineLife one{0, 1};
  board_->tell_load(one, {kHelp, 0}, 0);
  std::size_t taken = 0;
  for (int i = 0; i <= Board::kLooks; ++i) {
    EXPECT_EQ(taken, 0u);
    board_->beat(one);  // it serves other channels
    look();
    taken += other_->take_submitted({}, kAll, kHelp).size();
  }
  EXPECT_EQ(taken, 2u);
}

TEST_F(OwnershipTest, WhatWaitsAtAnEngineThatGoesOnIsLeftToIt) {
  submit_many(4);
  const auto taken = take(*one_, kHelp);
  const EngineLife one{0, 1};
  for (int i = 0; i < 3; ++i) {
    board_->beat(one);
    look();
    EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), IsEmpty());
    EXPECT_TRUE(other_->watches());
  }
  look(Board::kLooks);
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(2)) << "it does nothing: half of it";
  for (int i = 0; i < 2; ++i) {
    has_served(1);
    EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(1)) << "half of the rest";
  }
}

/// Not all of it: then the other would take it back.
TEST_F(OwnershipTest, AnEngineTakesAPartOfWhatWaitsAtAMuchBusierOne) {
  ChannelRequest request;
  request.prompt_tokens = counting(100, 1024);
  request.params.max_tokens = 4;
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(client_.submit(request).has_value());
  const auto taken = take(*one_, kHelp);
  ASSERT_THAT(taken, SizeIs(16));
  const EngineLife one{0, 1};
  board_->tell_load(one, {48, 16 * 1024}, 0);
  board_->beat(one);
  look();
  EXPECT_THAT(other_->take_submitted({}, kAll, kHelp), SizeIs(7))
      << "until it is busier by less than two steps of 2,048 tokens";
}

TEST_F(OwnershipTest, AChannelThatIsNotSharedWaitsForNoTurn) {
  submit_many(4);
  one_->do_not_share();
  EXPECT_THAT(take(*one_), SizeIs(4));
}

TEST_F(OwnershipTest, AnAbortIsForTheEngineThatHasTheRequest) {
  const std::uint32_t slot = submit();
  const auto taken = take(*one_, kHelp);
  client_.abort(slot);
  EXPECT_THAT(other_->take_aborts(), IsEmpty());
  EXPECT_THAT(one_->take_aborts(), ElementsAre(slot));
}

}  // namespace
}  // namespace kvhive::testing
