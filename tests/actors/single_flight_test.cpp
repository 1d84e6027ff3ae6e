// Single flight over one pool: engines of which each has a block manager, a slot and a clock that
// the test moves. Blocks of 4 tokens.

#include "actors/prefix/single_flight.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <set>

#include "actors/block_manager/block_manager_state.hpp"
#include "pool/care/cache_reset.hpp"
#include "pool/care/fsck.hpp"
#include "pool/care/reaper.hpp"
#include "pool/processes/process_slot.hpp"
#include "tests/support/cache_groups.hpp"
#include "tests/support/private_pool.hpp"
#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kSize = 4;
constexpr double kTokenSeconds = 1e-3;
constexpr double kPatience = 2;  ///< times what it would take alone

std::vector<TokenId> counting_to(std::size_t tokens) {
  std::vector<TokenId> list(tokens);
  std::iota(list.begin(), list.end(), 0);
  return list;
}

class SingleFlightTest : public ::testing::Test {
 protected:
  class Engine {
   public:
    Engine(SingleFlightTest& test, std::uint32_t slot, bool single_flight)
        : slot_{slot}, pool_(test.memory_, slot_), manager_(pool_, config(test, single_flight)) {
      sign_in(test.memory_, slot_, slot);
      manager_.copy_policy().set(1, kTokenSeconds);
    }
    void add(std::uint64_t seq, std::vector<TokenId> tokens) {
      const auto prompt = static_cast<std::uint32_t>(tokens.size());
      request_.added.push_back({SeqId{seq}, std::move(tokens), {}, 0, {}});
      request_.added.back().prompt_tokens = prompt;
      waiting_.push_back(SeqId{seq});
    }
    void end(std::uint64_t seq) {
      request_.ended.push_back(SeqId{seq});
      std::erase(running_, SeqId{seq});
      std::erase(waiting_, SeqId{seq});
    }
    /// Plans a step. Returns the sequences that it computes, and of each how many tokens.
    std::vector<std::pair<std::uint64_t, std::size_t>> plan(std::uint32_t budget = 1000) {
      request_.step = ++step_;
      request_.token_budget = budget;
      request_.waiting_in_all = static_cast<std::uint32_t>(waiting_.size());
      request_.running = running_;
      request_.waiting = waiting_;
      request_.victims.assign(running_.rbegin(), running_.rend());
      const StepPlan plan = manager_.plan(std::exchange(request_, {}));
      for (const SeqId seq : plan.outcome.preempted) {
        std::erase(running_, seq);
        waiting_.insert(waiting_.begin(), seq);
      }
      for (const Admission& admission : plan.outcome.admitted) {
        std::erase(waiting_, admission.seq);
        running_.push_back(admission.seq);
      }
      std::vector<std::pair<std::uint64_t, std::size_t>> computed;
      for (const auto& work : plan.work) computed.emplace_back(work.seq.value, work.tokens.size());
      return computed;
    }
    void finish() { manager_.finish_step(); }
    ProcessSlot slot() const { return slot_; }
    BlockPool& pool() { return pool_; }
    std::uint64_t waits() { return pool_.counters()["single_flight_waits"].load(); }

   private:
    static BlockManagerConfig config(SingleFlightTest& test, bool single_flight) {
      return {.retention = test.retention_,
              .long_prefill_token_threshold = test.threshold_,
              .single_flight = single_flight,
              .clock = [&test] {
                if (const auto act = std::exchange(test.meanwhile_, nullptr)) act();
                return test.now_;
              }};
    }

    ProcessSlot slot_;
    BlockPool pool_;
    BlockManagerState manager_;
    StepRequest request_;
    std::vector<SeqId> running_, waiting_;
    std::uint64_t step_ = 0;
  };

  using Work = std::pair<std::uint64_t, std::size_t>;

  Engine& engine(std::uint32_t slot, bool single_flight = true) {
    if (!engines_[slot]) engines_[slot] = std::make_unique<Engine>(*this, slot, single_flight);
    return *engines_[slot];
  }
  void pass(double seconds) { now_ += static_cast<std::uint64_t>(seconds * 1e9); }
  std::size_t claims() const {
    std::size_t count = 0;
    for (const auto& claim : memory_.control().claims) count += claim.load() != 0;
    return count;
  }
  /// Ends all, and checks that nothing is left.
  void TearDown() override {
    for (auto& engine : engines_) {
      if (!engine) continue;
      for (std::uint64_t seq = 1; seq < 9; ++seq)
        if (known_.contains({engine->slot().value, seq})) engine->end(seq);
      engine->plan();
    }
    EXPECT_EQ(claims(), 0u);
    EXPECT_THAT(fsck(memory_).violations, IsEmpty());
  }
  void add(std::uint32_t slot, std::uint64_t seq, std::vector<TokenId> tokens) {
    engine(slot).add(seq, std::move(tokens));
    known_.insert({slot, seq});
  }
  void end(std::uint32_t slot, std::uint64_t seq) {
    engine(slot).end(seq);
    known_.erase({slot, seq});
  }
  /// As if the process had been killed.
  void lose(std::uint32_t slot) {
    reap(memory_, ProcessSlot{slot});
    engines_[slot].reset();
    std::erase_if(known_, [slot](const auto& each) { return each.first == slot; });
  }

  /// Names, and so the places of claims, are the same in each run: of two names that have one
  /// place, one goes unclaimed, by design.
  static PoolMemory pool_of_one_secret(const CacheGroups& groups = {}) {
    PoolGeometry geometry = small_geometry(300, 0, kSize);
    geometry.models[0].groups = groups;
    PoolMemory memory = private_pool(geometry);
    PoolHeader& header = memory.control().header;
    for (std::size_t i = 0; i < header.secret.bytes.size(); ++i)
      header.secret.bytes[i] = static_cast<std::byte>(i * 37 + 11);
    header.checksum = checksum_of(header);
    memory.control().copy = header;
    return memory;
  }

  PoolMemory memory_ = pool_of_one_secret();
  std::uint64_t now_ = 1;
  std::uint32_t threshold_ = 0;
  WindowRetention retention_{};
  std::function<void()> meanwhile_;  ///< called once, between a lookup and a claim
  std::array<std::unique_ptr<Engine>, 3> engines_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> known_;
};

TEST_F(SingleFlightTest, AnEngineWaitsForWhatAnotherComputesAndThenFindsIt) {
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 101)));
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  engine(0).finish();
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 1)));
  EXPECT_EQ(engine(1).waits(), 1u);
}

TEST_F(SingleFlightTest, AfterAResetNobodyWaitsForWhatNobodyWillFind) {
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 101)));
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  reset_cache(memory_);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
  add(2, 1, counting_to(101));
  EXPECT_THAT(engine(2).plan(), IsEmpty());
  engine(0).finish();
  EXPECT_THAT(engine(2).plan(), IsEmpty()) << "engine 1 computes what it will find";
  engine(1).finish();
  EXPECT_THAT(engine(2).plan(), ElementsAre(Work(1, 1)));
}

TEST_F(SingleFlightTest, WithoutItBothCompute) {
  engine(0, false), engine(1, false);
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 101)));
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
  EXPECT_EQ(claims(), 0u);
}

TEST_F(SingleFlightTest, WhoWaitsIsPassed) {
  add(0, 1, counting_to(101));
  engine(0).plan();
  add(1, 2, counting_to(101));
  add(1, 3, {7, 8, 9});
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(3, 3)));
  engine(0).finish();
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(2, 1)));
}

/// In one engine nobody has to wait (actors/prefix/step_blocks.hpp).
TEST_F(SingleFlightTest, RequestsOfOneStepComputeItOnce) {
  add(0, 1, counting_to(101));
  add(0, 2, counting_to(101));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 101), Work(2, 1)));
  EXPECT_EQ(engine(0).waits(), 0u);
}

/// In chunks: between two of them nobody may see the blocks of the first and no claim behind them.
TEST_F(SingleFlightTest, TheClaimIsAlwaysAheadOfWhatIsPublished) {
  add(0, 1, counting_to(401));
  add(1, 1, counting_to(401));
  for (int chunk = 0; chunk < 10; ++chunk) {
    EXPECT_THAT(engine(0).plan(40), ElementsAre(Work(1, 40))) << chunk;
    EXPECT_THAT(engine(1).plan(), IsEmpty()) << chunk;
    engine(0).finish();
    if (chunk == 9) break;
    EXPECT_THAT(engine(1).plan(), IsEmpty()) << chunk;
  }
  EXPECT_EQ(claims(), 0u);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 1)));
  EXPECT_EQ(engine(1).waits(), 1u);
}

/// Longer, and other behind the part that both have.
TEST_F(SingleFlightTest, PromptsThatShareALongBeginningComputeItOnce) {
  std::vector<TokenId> other = counting_to(301);
  std::fill(other.begin() + 200, other.end(), 5);
  add(0, 1, counting_to(301));
  add(1, 1, other);
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 301)));
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  engine(0).finish();
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
}

TEST_F(SingleFlightTest, NobodyWaitsForLessThanAStretch) {
  std::vector<TokenId> other = counting_to(101);
  std::fill(other.begin() + 60, other.end(), 5);
  add(0, 1, counting_to(101));
  add(1, 1, other);
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 101)));
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
}

TEST_F(SingleFlightTest, NobodyWaitsLongerThanTwiceWhatItWouldTakeAlone) {
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  engine(0).plan();  // and then it is stopped
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(kPatience * 101 * kTokenSeconds - 1e-6);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(1e-6);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
}

TEST_F(SingleFlightTest, OneOfThoseThatLosePatienceTakesOverAndTheOthersWaitForIt) {
  for (const std::uint32_t slot : {0u, 1u, 2u}) add(slot, 1, counting_to(101));
  engine(0).plan();
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_THAT(engine(2).plan(), IsEmpty());
  pass(kPatience * 101 * kTokenSeconds);
  EXPECT_THAT(engine(2).plan(), ElementsAre(Work(1, 101)));
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(kPatience * 101 * kTokenSeconds - 1e-6);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  engine(2).finish();
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 1)));
  EXPECT_EQ(engine(1).waits(), 1u);
  engine(0).finish();
}

/// The others look only when it has come some way.
TEST_F(SingleFlightTest, WhoTakesOverHasTimeAlsoIfItIsQuick) {
  for (const std::uint32_t slot : {0u, 1u, 2u}) add(slot, 1, counting_to(401));
  engine(0).plan(40);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_THAT(engine(2).plan(), IsEmpty());
  pass(kPatience * 401 * kTokenSeconds);
  EXPECT_THAT(engine(2).plan(80), ElementsAre(Work(1, 80)));
  engine(2).finish();
  EXPECT_THAT(engine(1).plan(), IsEmpty());
}

TEST_F(SingleFlightTest, PatienceEndsWhateverComesMeanwhile) {
  add(0, 1, counting_to(401));
  add(1, 1, counting_to(401));
  engine(0).plan(200);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(401 * kTokenSeconds);
  engine(0).finish();
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(401 * kTokenSeconds - 1e-6);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  pass(1e-6);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 201)));
}

TEST_F(SingleFlightTest, WhoFindsNoRoomAfterItHasWaitedWaitsForNobodyAndLeavesNoClaim) {
  add(0, 1, counting_to(401));
  add(1, 1, counting_to(401));
  engine(0).plan(40);
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  end(0, 1);
  engine(0).plan();
  BlockPool& third = engine(2).pool();
  const auto rest = third.allocate(Tier::device, third.available(Tier::device)).value();
  for (int i = 0; i < 3; ++i) EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_EQ(claims(), 0u);
  third.release(rest);
  EXPECT_THAT(engine(1).plan(40), ElementsAre(Work(1, 40)));
}

/// With a threshold, several prompts of one engine are computed in one step, and none as a whole.
TEST_F(SingleFlightTest, WhoFindsBlocksOfThisStepDoesNotRunAheadOfTheirOwner) {
  threshold_ = 40;
  for (std::uint64_t seq = 1; seq <= 3; ++seq) add(0, seq, counting_to(401));
  for (int step = 0; step < 9; ++step)
    EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 40))) << step;
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 40), Work(2, 1), Work(3, 1)));
}

TEST_F(SingleFlightTest, BlocksThatCameBetweenLookupAndClaimAreFound) {
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  engine(0).plan();
  meanwhile_ = [&] { engine(0).finish(); };
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_EQ(claims(), 0u);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 1)));
}

/// Nobody can go on from the middle of a prompt there: whoever waited for less would wait for
/// nothing.
TEST_F(SingleFlightTest, WhereWindowsAreKeptAtTheEndOnlyTheWholePromptIsWaitedFor) {
  memory_ = pool_of_one_secret(groups_of({kFull, window(8)}));
  retention_ = {0};
  threshold_ = 80;
  add(0, 1, counting_to(301));
  add(0, 3, counting_to(5));  // so that the threshold holds
  add(1, 1, counting_to(301));
  add(2, 1, counting_to(201));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(1, 80), Work(3, 5)));
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  EXPECT_THAT(engine(2).plan(), ElementsAre(Work(1, 201))) << "the end of its prompt is its own";
  for (int step = 0; step < 3; ++step) {
    EXPECT_THAT(engine(0).plan(), Contains(Work(1, step < 2 ? 80 : 61)));
    EXPECT_THAT(engine(1).plan(), IsEmpty()) << step;
  }
  engine(0).finish();
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 1)));
}

TEST_F(SingleFlightTest, ADeadEnginesClaimsGoWithIt) {
  add(0, 1, counting_to(101));
  add(1, 1, counting_to(101));
  engine(0).plan();
  EXPECT_THAT(engine(1).plan(), IsEmpty());
  lose(0);
  EXPECT_EQ(claims(), 0u);
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(1, 101)));
}

TEST_F(SingleFlightTest, WhoEndsOrIsPreemptedGivesItsClaimBack) {
  add(0, 1, counting_to(401));
  add(1, 1, counting_to(401));
  engine(0).plan(40);
  end(0, 1);
  engine(0).plan();
  EXPECT_EQ(claims(), 0u);
  EXPECT_THAT(engine(1).plan(40), ElementsAre(Work(1, 40)));

  BlockPool& third = engine(2).pool();
  const auto rest = third.allocate(Tier::device, third.available(Tier::device)).value();
  EXPECT_THAT(engine(1).plan(40), IsEmpty());  // it preempts itself
  EXPECT_EQ(claims(), 0u);
  third.release(rest);
}

/// Its last block is always computed, by everybody.
TEST_F(SingleFlightTest, APromptThatIsCachedAsAWholeWaitsForNobody) {
  add(0, 1, counting_to(100));
  engine(0).plan();
  engine(0).finish();
  end(0, 1);
  add(0, 2, counting_to(100));
  add(1, 2, counting_to(100));
  EXPECT_THAT(engine(0).plan(), ElementsAre(Work(2, 4)));
  EXPECT_THAT(engine(1).plan(), ElementsAre(Work(2, 4)));
}

TEST_F(SingleFlightTest, ASequenceThatFindsNoRoomClaimsNothing) {
  add(0, 1, counting_to(1001));
  engine(0).plan(1001);
  add(0, 2, std::vector<TokenId>(401, 3));
  EXPECT_THAT(engine(0).plan(), IsEmpty());
  EXPECT_EQ(claims(), 0u);
}

}  // namespace
}  // namespace kvhive::testing
