#include "pool/processes/claims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "pool/care/repair.hpp"
#include "tests/support/private_pool.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClaimsTest : public ::testing::Test {
 protected:
  ClaimsTest() {
    for (const std::uint32_t slot : {0u, 1u, 2u}) occupy(memory_, ProcessSlot{slot}, slot + 1);
  }
  std::uint64_t word(std::size_t place) const { return memory_.control().claims[place].load(); }

  PoolMemory memory_ = private_pool(small_geometry(8));
  Claims ours_{memory_, ProcessSlot{0}}, theirs_{memory_, ProcessSlot{1}};
};

TEST_F(ClaimsTest, ANameIsClaimedOnceUntilItIsWithdrawn) {
  const Hash128 name{77, 3};
  const Claims::Answer first = ours_.claim(name);
  ASSERT_TRUE(first.claim);
  EXPECT_EQ(first.taken_by, 0u);
  for (Claims* claims : {&ours_, &theirs_}) {
    const Claims::Answer again = claims->claim(name);
    EXPECT_FALSE(again.claim);
    EXPECT_EQ(again.taken_by, first.claim->word);
  }
  ours_.withdraw(*first.claim);
  EXPECT_TRUE(theirs_.claim(name).claim);
}

TEST_F(ClaimsTest, TheHighestSlotIsToldFromTheOthers) {
  occupy(memory_, ProcessSlot{kMaxProcesses - 1});
  Claims last(memory_, ProcessSlot{kMaxProcesses - 1});
  const auto claim = last.claim({5, 6}).claim;
  ASSERT_TRUE(claim);
  EXPECT_EQ(claimed_by(claim->word), ProcessSlot{kMaxProcesses - 1});
  EXPECT_EQ(claimed_by(0), std::nullopt);
}

TEST_F(ClaimsTest, AnotherNameInThePlaceIsNotTakenAndNotToBeHad) {
  ASSERT_TRUE(ours_.claim({1, 9}).claim);
  const Claims::Answer answer = theirs_.claim({2, 9 + kClaims});
  EXPECT_FALSE(answer.claim);
  EXPECT_EQ(answer.taken_by, 0u);
}

TEST_F(ClaimsTest, AClaimOfASlotWithoutAProcessIsTakenOver) {
  const auto stale = ours_.claim({1, 9}).claim;
  occupy(memory_, ProcessSlot{0}, 0);
  const auto claim = theirs_.claim({1, 9}).claim;
  ASSERT_TRUE(claim);
  ours_.withdraw(*stale);  // not ours any more
  EXPECT_EQ(word(9), claim->word);
}

TEST_F(ClaimsTest, AClaimIsTakenOverFromOneThatIsNamedOnly) {
  const auto first = ours_.claim({1, 9}).claim;
  EXPECT_EQ(theirs_.claim({1, 9}, first->word + 64).taken_by, first->word);
  const auto second = theirs_.claim({1, 9}, first->word).claim;
  ASSERT_TRUE(second);
  ours_.withdraw(*first);
  EXPECT_EQ(ours_.claim({1, 9}).taken_by, second->word);
}

TEST_F(ClaimsTest, TheReaperWithdrawsADeadProcessesClaimsAndNoOthers) {
  ASSERT_TRUE(ours_.claim({1, 9}).claim && ours_.claim({1, 10}).claim);
  const auto others = theirs_.claim({1, 11}).claim;
  reap(memory_, ProcessSlot{0});
  EXPECT_EQ(word(9), 0u);
  EXPECT_EQ(word(10), 0u);
  EXPECT_EQ(word(11), others->word);
}

TEST_F(ClaimsTest, FsckNamesClaimsOfNobodyAndRepairDropsThem) {
  ASSERT_TRUE(ours_.claim({1, 9}).claim);
  memory_.control().claims[12].store(31u << 1 | 1);  // no slot at all
  EXPECT_THAT(fsck(memory_).violations,
              ::testing::ElementsAre(HasSubstr("claim 12 is of slot 31, which has no process")));
  occupy(memory_, ProcessSlot{0}, 0);
  EXPECT_THAT(fsck(memory_).violations, Contains(HasSubstr("claim 9 is of slot 0")));
  SlotOwners owners{};
  for (const std::uint32_t slot : {1u, 2u}) owners[slot] = {SlotOwner::Use::used, slot + 1};
  EXPECT_EQ(repair(memory_, owners).fields, 2u);
  EXPECT_THAT(fsck(memory_).violations, IsEmpty());
}

/// Processes that all want the same few names: a name is never two processes' at once.
TEST_F(ClaimsTest, ProcessesThatComeAtOnceNeverHaveTheSameClaim) {
  constexpr int kProcesses = 3, kTurns = 200'000;
  constexpr std::uint64_t kNames = 4;
  auto* const inside = &memory_.control().tiers[1].lanes;  // shared memory that nobody else uses
  std::vector<pid_t> children;
  for (std::uint32_t slot = 0; slot < kProcesses; ++slot) {
    children.push_back(fork());
    ASSERT_GE(children.back(), 0);
    if (children.back() != 0) continue;
    Claims claims(memory_, ProcessSlot{slot});
    std::uint64_t made = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::uint64_t name = static_cast<std::uint64_t>(turn) % kNames;
      const auto claim = claims.claim({name, name}).claim;
      if (!claim) continue;
      auto& count = (*inside)[name].epoch;
      if (count.fetch_add(1) != 0) _exit(1);
      count.fetch_sub(1);
      claims.withdraw(*claim);
      ++made;
    }
    _exit(made != 0 ? 0 : 2);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

}  // namespace
}  // namespace kvhive::testing
