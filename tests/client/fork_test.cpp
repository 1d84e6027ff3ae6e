// Requests that go on from another's tokens as soon as it has ended, through a daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/daemon.hpp"

namespace kvhive::testing {
namespace {

/// 21 tokens, that no other test has.
std::vector<TokenId> prompt_of(int test) {
  std::vector<TokenId> tokens(21);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>(300 + (37 * test + 11 * i) % 1000);
  return tokens;
}

class ForkTest : public ::testing::Test {
 protected:
  Progress answer(const GenerateRequest& request) {
    auto answered = client_.generate(request);
    EXPECT_TRUE(answered.has_value()) << answered.error().text;
    return std::move(*answered);
  }
  /// A greedy token, and then so many behind it.
  struct Pair {
    Progress parent, child;
  };
  Pair go_on(std::vector<TokenId> prompt, bool will_be_forked) {
    GenerateRequest request;
    request.prompt_tokens = std::move(prompt);
    request.max_tokens = 1;
    request.ignore_eos = true;
    request.will_be_forked = will_be_forked;
    Pair pair{answer(request), {}};
    request.prompt_tokens.push_back(pair.parent.tokens.at(0).token);
    request.max_tokens = 9;
    request.will_be_forked = false;
    pair.child = answer(request);
    return pair;
  }

  Daemon daemon_{{"--kv-cache-memory-bytes", "16M"}};
  Client client_ = daemon_.connect();
};

/// 22 tokens, of which the newest is not computed yet. What is kept is not kept for ever, and a
/// machine may be slow: not every child must find it.
TEST_F(ForkTest, AForkComputesOnlyTheTokensThatAreNew) {
  int test = 0;
  Pair forked;
  ASSERT_TRUE(eventually([&] {
    forked = go_on(prompt_of(++test), true);
    return forked.child.cached_tokens == 21;
  }));
  EXPECT_GE(daemon_.stat()["forked_tokens"], 5);

  GenerateRequest whole;
  whole.prompt_tokens = prompt_of(test);
  whole.cache_salt = "nothing of it is cached";
  whole.max_tokens = 10;
  whole.ignore_eos = true;
  const Progress expected = answer(whole);
  EXPECT_EQ(expected.cached_tokens, 0u);
  for (std::size_t i = 0; i < forked.child.tokens.size(); ++i)
    EXPECT_EQ(forked.child.tokens[i].token, expected.tokens.at(i + 1).token) << i;
}

TEST_F(ForkTest, WhoDoesNotSayThatItWillBeForkedLeavesFullBlocksOnly) {
  EXPECT_EQ(go_on(prompt_of(0), false).child.cached_tokens, 16u);
}

TEST_F(ForkTest, AnIdleEngineKeepsNothingForForks) {
  go_on(prompt_of(0), true);
  EXPECT_TRUE(eventually([&] {
    const Json device = daemon_.stat()["tiers"]["device"];
    return device["filling"] == 0 && device["held"] == 0;
  }));
}

}  // namespace
}  // namespace kvhive::testing
