// Rules about tokens, from the client library through a daemon: what vLLM calls penalties, biases,
// bad words, allowed tokens and min_tokens.

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

using ::testing::EndsWith;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenRulesOfClients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = new Daemon({"--kv-cache-memory-bytes", "16M", "--engines", "2"});
  }
  static void TearDownTestSuite() { delete daemon_; }

  static GenerateRequest request(std::uint32_t tokens = 40) {
    GenerateRequest request = request_of("In the beginning", tokens);
    request.logprobs = 5;
    return request;
  }
  Progress answer(const GenerateRequest& request) {
    auto answered = client_.generate(request);
    EXPECT_TRUE(answered.has_value()) << answered.error().text;
    return std::move(*answered);
  }
  static std::size_t most_often(const Progress& answer) {
    std::map<TokenId, std::size_t> counts;
    std::size_t most = 0;
    for (const OutputToken& token : answer.tokens) most = std::max(most, ++counts[token.token]);
    return most;
  }

  static inline Daemon* daemon_ = nullptr;
  Client client_ = daemon_->connect();
};

TEST_F(TokenRulesOfClients, ABiasChangesTheTokenAndNotWhatIsSaidOfIt) {
  const Progress plain = answer(request(1));
  GenerateRequest biased = request(1);
  biased.logit_bias[plain.tokens[0].token] = -100;
  const Progress other = answer(biased);
  EXPECT_EQ(other.tokens[0].token, plain.tokens[0].top[1].token) << "the second likeliest";
  EXPECT_EQ(other.tokens[0].logprob, plain.tokens[0].top[1].logprob);
  EXPECT_EQ(other.tokens[0].top[0].token, plain.tokens[0].token);
}

TEST_F(TokenRulesOfClients, PenaltiesMakeTokensRarer) {
  const std::size_t plain = most_often(answer(request(200)));
  for (const auto penalise : {+[](GenerateRequest& r) { r.presence_penalty = 2; },
                              +[](GenerateRequest& r) { r.frequency_penalty = 2; },
                              +[](GenerateRequest& r) { r.repetition_penalty = 1.5f; }}) {
    GenerateRequest penalised = request(200);
    penalise(penalised);
    EXPECT_LT(most_often(answer(penalised)), plain);
  }
}

TEST_F(TokenRulesOfClients, OnlyAllowedTokensAreGenerated) {
  GenerateRequest asked = request();
  asked.temperature = 1;
  asked.allowed_token_ids = {300, 301, 999};
  for (const OutputToken& token : answer(asked).tokens)
    EXPECT_THAT(asked.allowed_token_ids, ::testing::Contains(token.token));
}

TEST_F(TokenRulesOfClients, ABadWordIsNotSaid) {
  GenerateRequest asked = request();
  ASSERT_THAT(answer(asked).text, HasSubstr(" son"));
  asked.bad_words = {"son"};
  EXPECT_THAT(answer(asked).text, Not(HasSubstr(" son")));
}

TEST_F(TokenRulesOfClients, MinTokensComeBeforeAnythingEndsTheAnswerAndAStopMayStay) {
  const Progress plain = answer(request());
  GenerateRequest asked = request();
  asked.stop = {"e"};
  asked.include_stop = true;
  const Progress early = answer(asked);
  EXPECT_EQ(early.reason, Finish::stop);
  EXPECT_THAT(early.text, EndsWith("e"));
  EXPECT_EQ(early.text.find('e'), early.text.size() - 1);
  EXPECT_EQ(early.text_bytes, early.text.size());
  asked.min_tokens = 20;
  const Progress late = answer(asked);
  EXPECT_EQ(late.reason, Finish::stop);
  EXPECT_THAT(late.tokens.size(), Ge(21u));
  EXPECT_EQ(late.text, plain.text.substr(0, late.text.size()));
  asked = request();
  asked.stop_token_ids = {plain.tokens[3].token};
  asked.min_tokens = 30;
  const Progress longer = answer(asked);
  EXPECT_THAT(longer.tokens.size(), Ge(30u));
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_NE(longer.tokens[i].token, plain.tokens[3].token) << "it cannot be generated there";
}

TEST_F(TokenRulesOfClients, WhatCannotBeIsRefusedByName) {
  GenerateRequest asked = request();
  asked.presence_penalty = 3;
  EXPECT_THAT(client_.generate(asked).error().text, HasSubstr("presence_penalty = 3"));
  asked = request();
  asked.min_tokens = 41;
  EXPECT_THAT(client_.generate(asked).error().text, HasSubstr("min_tokens is 41; at most max_tok"));
  asked = request();
  asked.allowed_token_ids = {1, 1'000'000};
  const Progress refused = answer(asked);
  EXPECT_EQ(refused.error.code, ErrorCode::bad_argument);
  EXPECT_THAT(refused.error.text, HasSubstr("allowed_token_ids: token id 1000000"));
}

/// The engine that goes on counts what the dead one had generated.
TEST_F(TokenRulesOfClients, AnotherEngineGoesOnWithTheSameTokens) {
  GenerateRequest asked = request(1500);
  asked.ignore_eos = true;
  asked.temperature = 0.8f;
  asked.seed = 3;
  asked.frequency_penalty = 0.1f;
  asked.repetition_penalty = 1.05f;
  asked.logit_bias[300] = -4;
  asked.bad_words = {"Lord"};
  const Progress undisturbed = answer(asked);
  const RequestId number = *client_.submit(asked);
  std::vector<TokenId> tokens;
  bool has_killed = false;
  Progress news;
  do {
    ASSERT_TRUE(client_.wait().has_value());
    news = *client_.read(number);
    for (const OutputToken& token : news.tokens) tokens.push_back(token.token);
    if (has_killed || tokens.size() < 50 || !news.engine) continue;
    has_killed = true;
    signal_process(daemon_->engine(*news.engine)["pid"].get<pid_t>(), SIGKILL);
  } while (news.reason == Finish::none);
  EXPECT_EQ(news.reason, Finish::length) << news.error.text;
  EXPECT_TRUE(has_killed);
  EXPECT_EQ(tokens, ids(undisturbed));
}

}  // namespace
}  // namespace kvhive::testing
