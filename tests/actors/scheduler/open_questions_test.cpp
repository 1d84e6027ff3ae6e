#include "actors/scheduler/open_questions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/request.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;

class OpenQuestionsTest : public ::testing::Test {
 protected:
  void add(std::uint64_t seq, std::uint16_t domain, std::size_t tokens = 3) {
    questions_.add(
        SeqId{seq},
        {{1, std::uint32_t(seq)}, counting(1, tokens), {}, {}, nullptr, DomainId{domain}});
  }
  /// The next batch, which is answered at once.
  std::vector<std::uint64_t> next() {
    std::vector<std::uint64_t> seqs;
    const auto batch = questions_.next(7);
    if (!batch) return seqs;
    EXPECT_EQ(batch->running, 7u);
    for (const Question& question : batch->asked) seqs.push_back(question.seq.value);
    for (const Question& question : batch->asked) questions_.take(question.seq);
    return seqs;
  }

  OpenQuestions questions_;
};

TEST_F(OpenQuestionsTest, DomainsTakeTurns) {
  for (const std::uint64_t seq : {1, 2, 3, 4}) add(seq, 5);
  add(5, 2);
  add(6, 65535);
  EXPECT_THAT(next(), ElementsAre(5, 1, 6));
  EXPECT_THAT(next(), ElementsAre(2));
  add(7, 2);
  EXPECT_THAT(next(), ElementsAre(7, 3));
  EXPECT_THAT(next(), ElementsAre(4));
  EXPECT_THAT(next(), ElementsAre());
}

TEST_F(OpenQuestionsTest, ABatchEndsWithTheQuestionThatMakesItLong) {
  add(1, 1, OpenQuestions::kMostTokens - 1);
  add(2, 2, 1);
  add(3, 3, 1);
  EXPECT_THAT(next(), ElementsAre(1, 2));
  EXPECT_THAT(next(), ElementsAre(3));
}

TEST_F(OpenQuestionsTest, OneBatchIsOutAtATime) {
  add(1, 1);
  add(2, 2);
  add(3, 2);
  ASSERT_TRUE(questions_.next(0));
  EXPECT_FALSE(questions_.next(0));
  questions_.take(SeqId{2});
  EXPECT_FALSE(questions_.next(0));
  questions_.take(SeqId{1});
  EXPECT_EQ(questions_.size(), 1u);
  EXPECT_THAT(next(), ElementsAre(3));
  EXPECT_EQ(questions_.size(), 0u);
}

TEST_F(OpenQuestionsTest, AQuestionHasWhatALookupNeeds) {
  Submission submission{{1, 1}, counting(4, 5), {}, {}, nullptr, DomainId{3}};
  submission.salt = {8, 9};
  submission.params.prompt_logprobs = 0;
  questions_.add(SeqId{1}, submission);
  const auto batch = questions_.next(0);
  ASSERT_EQ(batch->asked.size(), 1u);
  const Question& question = batch->asked[0];
  EXPECT_EQ(question.tokens, counting(4, 5));
  EXPECT_EQ(question.domain, DomainId{3});
  EXPECT_EQ(question.salt, (ExtraKey{8, 9}));
  EXPECT_FALSE(question.reads_cache) << "its prompt would be scored";
}

}  // namespace
}  // namespace kvhive::testing
