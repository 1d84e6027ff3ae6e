#include "pool/block_view.hpp"

#include <gmock/gmock.h>

#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

constexpr ProcessSlot kHolder{0}, kAnother{1};

/// One published block. Tests change it while a reader is reading it.
struct OneBlock {
  OneBlock() : memory(private_pool(small_geometry(2))) { publish(7); }

  BlockView view() const { return memory.block(BlockId{1}); }
  void publish(std::uint64_t serial) const {
    view().set_word(view().word().taken_by(kHolder));
    view().write({.name = {serial, serial}, .uid = serial, .serial = serial}, false, ProcessSlot{});
    view().set_word(view().word().published_by(kHolder).unpinned_by(kHolder));
  }
  void come_round_to(BlockWord word) const { view().set_word(word); }

  PoolMemory memory;
};

TEST(ReadStably, AReaderThatIsNotDisturbedHasReadOneContent) {
  const OneBlock b;
  std::uint64_t uid = 0;
  EXPECT_TRUE(read_stably(b.view(), [&] { uid = b.view().uid(); }));
  EXPECT_EQ(uid, 7u);
}

TEST(ReadStably, HoldersMayComeAndGo) {
  const OneBlock b;
  EXPECT_TRUE(read_stably(b.view(), [&] {
    BlockWord seen = b.view().word();
    EXPECT_TRUE(b.view().pin(seen, kAnother));
  }));
  EXPECT_TRUE(read_stably(b.view(), [&] { b.view().unpin(kAnother); }));
}

TEST(ReadStably, ABlockThatIsTakenMeanwhileIsNotBelieved) {
  const OneBlock b;
  EXPECT_FALSE(
      read_stably(b.view(), [&] { b.view().set_word(b.view().word().taken_by(kAnother)); }));
  EXPECT_FALSE(read_stably(b.view(), [] {})) << "it is being filled";
}

TEST(ReadStably, ABlockThatIsPublishedAnewMeanwhileIsNotBelieved) {
  const OneBlock b;
  EXPECT_FALSE(read_stably(b.view(), [&] { b.publish(8); }));
}

TEST(ReadStably, NorIfItsGenerationComesRound) {
  const OneBlock b;
  const BlockWord before = b.view().word();
  EXPECT_FALSE(read_stably(b.view(), [&] {
    b.publish(8);
    b.come_round_to(before);
  }));
  EXPECT_EQ(b.view().word(), before);
}

TEST(BlockView, APinFailsOnceTheBlockHasBeenTakenAgain) {
  const OneBlock b;
  BlockWord seen = b.view().word();
  b.publish(8);
  EXPECT_FALSE(b.view().pin(seen, kAnother));
  EXPECT_EQ(b.view().word().holders(), 0u);
}

TEST(BlockView, APinReturnsTheWordBeforeItAlsoIfAnotherPinnedFirst) {
  const OneBlock b;
  BlockWord seen = b.view().word(), stale = seen;
  EXPECT_TRUE(b.view().pin(seen, kAnother));
  EXPECT_EQ(seen.holders(), 0u);
  EXPECT_TRUE(b.view().pin(stale, kHolder));
  EXPECT_EQ(stale.holders(), holder_bit(kAnother));
  EXPECT_EQ(b.view().word().holders(), holder_bit(kAnother) | holder_bit(kHolder));
}

}  // namespace
}  // namespace kvhive::testing
