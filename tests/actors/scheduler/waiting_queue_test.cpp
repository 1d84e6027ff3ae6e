#include "actors/scheduler/waiting_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "actors/scheduler/drain_rate.hpp"

namespace kvhive::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

constexpr DomainId kA{0}, kB{1}, kC{2};

/// A queue, and an engine that runs what it says. Requests are numbered 1, 2, ... as they come.
class WaitingQueueTest : public ::testing::Test {
 protected:
  void make(SchedulingPolicy policy) { queue_ = WaitingQueue(policy); }
  void weigh(DomainId domain, float weight) { queue_.set_share(domain, {.weight = weight}); }

  std::uint64_t come(DomainId domain, std::size_t tokens = 10, std::int32_t priority = 0) {
    const std::uint64_t number = entries_.size() + 1;
    entries_.push_back({SeqId{number}, domain, priority, number, tokens});
    places_.push_back(queue_.add(entries_.back()));
    return number;
  }
  void leave(std::uint64_t number) { queue_.remove(entries_[number - 1], places_[number - 1]); }
  void run(std::uint64_t number, std::size_t cached = 0) {
    const WaitingQueue::Entry& entry = entries_[number - 1];
    queue_.begins(entry.domain);
    leave(number);
    queue_.serve(entry.domain, entry.tokens - cached);
  }
  void preempt(std::uint64_t number) {
    const WaitingQueue::Entry& entry = entries_[number - 1];
    places_[number - 1] = queue_.add_preempted(entry);
    queue_.ends(entry.domain);
  }
  void end(std::uint64_t number) { queue_.ends(entries_[number - 1].domain); }
  DomainId domain_of(std::uint64_t number) const { return entries_[number - 1].domain; }

  std::vector<std::uint64_t> order(std::size_t most = 100) const {
    std::vector<std::uint64_t> numbers;
    for (const SeqId seq : queue_.first(most)) numbers.push_back(seq.value);
    return numbers;
  }
  std::uint64_t run_next(std::size_t cached = 0) {
    const std::uint64_t number = order(1).at(0);
    run(number, cached);
    return number;
  }

  WaitingQueue queue_{SchedulingPolicy::fcfs};
  std::vector<WaitingQueue::Entry> entries_;
  std::vector<WaitingQueue::Place> places_;
};

// -- one domain: vLLM's order

TEST_F(WaitingQueueTest, OneDomainIsServedInOrderOfArrivalHoweverLongItsPrompts) {
  for (const std::size_t tokens : {5, 5000, 1, 300}) come(kA, tokens);
  EXPECT_THAT(order(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(order(2), ElementsAre(1, 2));
  EXPECT_EQ(queue_.tokens(), 5306u);
  leave(2);
  EXPECT_THAT(order(), ElementsAre(1, 3, 4));
  EXPECT_EQ(queue_.size(), 3u);
  EXPECT_EQ(queue_.tokens_of(kA), 306u);
}

TEST_F(WaitingQueueTest, PreemptedRequestsGoFirstTheLastPreemptedBeforeTheOthers) {
  for (int i = 0; i < 4; ++i) come(kA);
  for (int i = 0; i < 3; ++i) run_next();
  preempt(3);
  preempt(2);
  EXPECT_THAT(order(), ElementsAre(2, 3, 4));
  leave(3);
  EXPECT_THAT(order(), ElementsAre(2, 4));
}

TEST_F(WaitingQueueTest, WithPrioritiesTheLowestNumberGoesFirstAlsoAfterAPreemption) {
  make(SchedulingPolicy::priority);
  for (const std::int32_t priority : {3, -1, 3, 0}) come(kA, 10, priority);
  EXPECT_THAT(order(), ElementsAre(2, 4, 1, 3));
  for (int i = 0; i < 3; ++i) run_next();
  preempt(1);
  EXPECT_THAT(order(), ElementsAre(1, 3));
}

/// vLLM: test_priority_scheduling_heap_property.
TEST_F(WaitingQueueTest, WithPrioritiesManyRequestsAreServedAsIfSorted) {
  make(SchedulingPolicy::priority);
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) come(kA, 10, static_cast<std::int32_t>(random() % 9) - 4);
  std::vector<std::uint64_t> expected(entries_.size());
  std::iota(expected.begin(), expected.end(), 1);
  std::ranges::stable_sort(expected, {},
                           [&](auto number) { return entries_[number - 1].priority; });
  for (const std::uint64_t number : expected) EXPECT_EQ(run_next(), number);
}

// -- several domains

TEST_F(WaitingQueueTest, ManyRequestsOfOneDomainDoNotKeepAnotherWaiting) {
  for (int i = 0; i < 100; ++i) come(kA);
  for (int i = 0; i < 4; ++i) run_next();
  const std::uint64_t late = come(kB);
  EXPECT_THAT(order(2), Contains(late));
}

TEST_F(WaitingQueueTest, ShortRequestsGetAsManyTokensAsLongOnes) {
  for (int i = 0; i < 10; ++i) come(kA, 1000);
  for (int i = 0; i < 1000; ++i) come(kB, 10);
  std::size_t tokens_of_a = 0, in_all = 0;
  while (in_all < 10'000) {
    const std::uint64_t number = run_next();
    const std::size_t tokens = entries_[number - 1].tokens;
    in_all += tokens;
    tokens_of_a += domain_of(number) == kA ? tokens : 0;
    end(number);
  }
  EXPECT_NEAR(static_cast<double>(tokens_of_a), 5000, 1000);
}

TEST_F(WaitingQueueTest, TokensAreAsTheWeightsWhateverTheRequestsAndTheirAnswers) {
  weigh(kA, 1);
  weigh(kB, 2);
  weigh(kC, 0.5f);
  std::mt19937 random(7);
  std::map<DomainId, double> tokens;
  std::vector<std::uint64_t> running;
  for (int step = 0; step < 20'000; ++step) {
    for (const DomainId domain : {kA, kB, kC})
      while (queue_.tokens_of(domain) < 500) come(domain, 1 + random() % 200);
    while (running.size() < 16) {
      running.push_back(run_next());
      tokens[domain_of(running.back())] += static_cast<double>(entries_[running.back() - 1].tokens);
    }
    for (const std::uint64_t number : running) {
      queue_.serve(domain_of(number), 1);
      ++tokens[domain_of(number)];
    }
    std::erase_if(running, [&](std::uint64_t number) {
      if (random() % 50 != 0) return false;
      end(number);
      return true;
    });
  }
  EXPECT_NEAR(tokens[kB] / tokens[kA], 2, 0.02);
  EXPECT_NEAR(tokens[kC] / tokens[kA], 0.5, 0.01);
}

TEST_F(WaitingQueueTest, TokensOfTheCacheAreNotCharged) {
  for (int i = 0; i < 3; ++i) come(kA, 100);
  for (int i = 0; i < 3; ++i) come(kB, 100);
  run_next(90);  // kA's
  EXPECT_EQ(domain_of(run_next()), kB);
  EXPECT_EQ(domain_of(run_next(90)), kA);
  EXPECT_EQ(domain_of(run_next()), kA) << "20 tokens against 100";
}

TEST_F(WaitingQueueTest, ADomainThatHadNothingToDoGetsNoCreditForIt) {
  come(kB);
  end(run_next());
  for (int i = 0; i < 50; ++i) come(kA, 100);
  for (int i = 0; i < 20; ++i) end(run_next());
  for (int i = 0; i < 50; ++i) come(kB, 100);
  std::size_t of_b = 0;
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t number = run_next();
    of_b += domain_of(number) == kB;
    end(number);
  }
  EXPECT_EQ(of_b, 5u) << "they take turns from now on";
}

TEST_F(WaitingQueueTest, NorDoesWhoeverComesFirstAfterAPause) {
  for (int i = 0; i < 20; ++i) end((come(kA, 100), run_next()));
  for (int i = 0; i < 10; ++i) come(kB, 100);  // nobody has anything to do just now
  for (int i = 0; i < 10; ++i) come(kA, 100);
  std::size_t of_a = 0;
  for (int i = 0; i < 10; ++i) of_a += domain_of(run_next()) == kA;
  EXPECT_EQ(of_a, 5u);
}

TEST_F(WaitingQueueTest, ALongAnswerSavesNothingUp) {
  come(kA, 10);
  run_next();
  for (int i = 0; i < 200; ++i) {  // kA's answer goes on, one token at a time
    come(kB, 100);
    end(run_next());
    queue_.serve(kA, 1);
  }
  for (int i = 0; i < 20; ++i) come(kA, 100), come(kB, 100);
  std::size_t of_a = 0;
  for (int i = 0; i < 20; ++i) of_a += domain_of(run_next()) == kA;
  EXPECT_EQ(of_a, 10u);
}

TEST_F(WaitingQueueTest, ADomainThatItsOwnLimitHoldsBackGivesNobodyCredit) {
  queue_.set_share(kA, {.max_num_seqs = 1});
  for (int i = 0; i < 3; ++i) come(kA, 10);
  run_next();
  for (int i = 0; i < 30; ++i) come(kB, 100);
  for (int i = 0; i < 10; ++i) end(run_next());
  for (int i = 0; i < 10; ++i) come(kC, 100);
  std::size_t of_c = 0;
  for (int i = 0; i < 10; ++i) of_c += domain_of(run_next()) == kC;
  EXPECT_EQ(of_c, 5u);
}

TEST_F(WaitingQueueTest, NoDomainRunsMoreThanItsShareAllows) {
  queue_.set_share(kA, {.max_num_seqs = 2});
  for (int i = 0; i < 5; ++i) come(kA);
  come(kB);
  EXPECT_THAT(order(), ElementsAre(1, 6, 2));
  run(1);
  run(2);
  EXPECT_THAT(order(), ElementsAre(6));
  end(1);
  EXPECT_THAT(order(), ElementsAre(6, 3));
}

TEST_F(WaitingQueueTest, APriorityCountsWithinItsDomainOnly) {
  make(SchedulingPolicy::priority);
  for (int i = 0; i < 4; ++i) come(kA, 10, -1000);
  for (int i = 0; i < 2; ++i) come(kB, 10, 5 - i);
  EXPECT_THAT(order(), ElementsAre(1, 6, 2, 5, 3, 4));
}

TEST_F(WaitingQueueTest, PreemptedRequestsGoBeforeThoseOfOtherDomains) {
  come(kA);
  come(kB);
  run_next();
  preempt(1);
  EXPECT_THAT(order(), ElementsAre(1, 2));
}

TEST_F(WaitingQueueTest, OfADomainAtItsMaximumOneRequestIsTriedAndTheOthersKeepNobodyWaiting) {
  for (int i = 0; i < 3; ++i) come(kA);
  queue_.serve(kB, 1000);  // A, which has been served least, would be first for long
  for (int i = 0; i < 2; ++i) come(kB);
  queue_.set_at_maximum({kA});
  EXPECT_THAT(order(3), ElementsAre(1, 4, 5));
  queue_.set_at_maximum({});
  EXPECT_THAT(order(3), ElementsAre(1, 2, 3));
}

TEST_F(WaitingQueueTest, SoForItsPreemptedRequests) {
  for (int i = 0; i < 2; ++i) run(come(kA));
  come(kA);
  come(kB);
  preempt(2);
  preempt(1);
  queue_.set_at_maximum({kA});
  EXPECT_THAT(order(), ElementsAre(1, 4));
}

TEST_F(WaitingQueueTest, WhoComesDoesNotGetTheCreditOfADomainAtItsMaximum) {
  come(kA);
  run(come(kB, 1000));
  queue_.set_at_maximum({kA});
  come(kC);
  EXPECT_EQ(queue_.served(kC), 1000);
}

TEST_F(WaitingQueueTest, IsEmptyWhenAllHaveLeft) {
  come(kA);
  come(kB);
  leave(1);
  leave(2);
  EXPECT_TRUE(queue_.is_empty());
  EXPECT_THAT(order(), IsEmpty());
  EXPECT_EQ(queue_.tokens(), 0u);
}

// -- when to try again

TEST(DrainRate, SaysWhenSoManyTokensWillHaveLeft) {
  DrainRate rate;
  EXPECT_EQ(rate.time_for(5000), DrainRate::kUnknown) << "nothing is known yet";
  for (int step = 0; step < 20; ++step) rate.add_step(0.1, 50);
  EXPECT_EQ(rate.time_for(1000), 2000ms);
  EXPECT_EQ(rate.time_for(1), DrainRate::kLeast);
  EXPECT_EQ(rate.time_for(10'000'000), DrainRate::kMost);
}

TEST(DrainRate, FollowsAChange) {
  DrainRate rate;
  for (int step = 0; step < 1000; ++step) rate.add_step(0.1, 50);
  for (int step = 0; step < 300; ++step) rate.add_step(0.1, 5);  // half a minute
  EXPECT_GT(rate.time_for(1000), 10s);
}

TEST(DrainRate, LearnsNothingFromStepsThatWereNotMeasured) {
  DrainRate rate;
  rate.add_step(0, 100);
  EXPECT_EQ(rate.time_for(1000), DrainRate::kLeast);
}

}  // namespace
}  // namespace kvhive::testing
