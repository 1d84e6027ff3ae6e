#include "actors/speculation/accepted.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// A sequence whose tokens from place `start` on a step computes, the last `drafts` guessed.
ScheduledSequence work(std::uint64_t seq, std::uint32_t start, std::vector<TokenId> tokens,
                       std::uint32_t drafts, bool samples = true) {
  ScheduledSequence made;
  made.seq = SeqId{seq};
  made.start = start;
  made.tokens = std::move(tokens);
  made.samples = samples;
  made.drafts = drafts;
  return made;
}

std::vector<std::pair<std::uint64_t, TokenId>> standing(const StepPlan& plan,
                                                        const std::vector<TokenId>& sampled) {
  std::vector<GeneratedToken> tokens;
  for (const TokenId token : sampled) tokens.push_back({token, 0, {}});
  std::vector<std::pair<std::uint64_t, TokenId>> kept;
  for (const SampledToken& each : accepted(sampled_rows(plan), std::move(tokens)))
    kept.emplace_back(each.seq.value, each.token.token);
  return kept;
}

TEST(Accepted, RowsAreTheLastKnownTokensAndTheDrafts) {
  StepPlan plan;
  plan.work.push_back(work(1, 8, {40, 41, 42}, 2));
  plan.work.push_back(work(2, 0, {50, 51}, 0, false));
  plan.work.push_back(work(3, 5, {60, 61}, 0));
  std::vector<std::pair<std::uint32_t, std::uint64_t>> rows;
  for (const SampledRow& row : sampled_rows(plan)) rows.emplace_back(row.row, row.position());
  EXPECT_THAT(rows, ElementsAre(Pair(0, 9), Pair(1, 10), Pair(2, 11), Pair(1, 7)));
}

TEST(Accepted, ARowsAnswerHasTheGuessesBeforeItsToken) {
  StepPlan plan;
  plan.work.push_back(work(1, 8, {39, 40, 41, 42}, 2));
  plan.work.front().answer = {38, 39, 40};
  std::vector<std::vector<TokenId>> answers;
  for (const SampledRow& row : sampled_rows(plan)) answers.push_back(row.answer());
  EXPECT_THAT(answers, ElementsAre(ElementsAre(38, 39, 40), ElementsAre(38, 39, 40, 41),
                                   ElementsAre(38, 39, 40, 41, 42)));
}

TEST(Accepted, ATokenStandsBehindEachDraftThatWasRight) {
  StepPlan plan;
  plan.work.push_back(work(1, 8, {40, 41, 42}, 2));
  EXPECT_THAT(standing(plan, {41, 42, 43}), ElementsAre(Pair(1, 41), Pair(1, 42), Pair(1, 43)));
  EXPECT_THAT(standing(plan, {41, 7, 43}), ElementsAre(Pair(1, 41), Pair(1, 7)));
  EXPECT_THAT(standing(plan, {7, 42, 43}), ElementsAre(Pair(1, 7)))
      << "what follows a wrong draft was computed from it";
}

TEST(Accepted, OneSequencesWrongDraftIsNothingToTheNext) {
  StepPlan plan;
  plan.work.push_back(work(1, 8, {40, 41}, 1));
  plan.work.push_back(work(2, 3, {50, 51}, 1));
  plan.work.push_back(work(3, 0, {60}, 0));
  EXPECT_THAT(standing(plan, {7, 8, 51, 52, 61}),
              ElementsAre(Pair(1, 7), Pair(2, 51), Pair(2, 52), Pair(3, 61)));
}

TEST(Accepted, NothingIsSampledForNothing) { EXPECT_THAT(standing({}, {}), IsEmpty()); }

}  // namespace
}  // namespace kvhive::testing
