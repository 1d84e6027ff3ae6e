#include "config/sampling/token_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kvhive::testing {
namespace {

using ::testing::HasSubstr;

std::string refused(const TokenRules& rules) {
  const auto checked = check(rules);
  return checked ? std::string() : checked.error().text;
}

TEST(TokenRules, TheDefaultChangesNoLogitsAndEachFieldDoes) {
  EXPECT_TRUE(TokenRules().change_no_logits());
  for (const TokenRules& rules :
       {TokenRules{.presence_penalty = 1}, TokenRules{.frequency_penalty = -1},
        TokenRules{.repetition_penalty = 0.5f}, TokenRules{.min_tokens = 1},
        TokenRules{.logit_bias = {{1, 0}}}, TokenRules{.allowed_token_ids = {1}},
        TokenRules{.bad_words = {"a"}}})
    EXPECT_FALSE(rules.change_no_logits());
}

TEST(TokenRules, TheEndsOfRangesAreTaken) {
  EXPECT_EQ(refused({.presence_penalty = -2,
                     .frequency_penalty = 2,
                     .repetition_penalty = 1e-3f,
                     .logit_bias = {{0, -100}, {1, 100}},
                     .bad_words = {std::string(64, 'a')}}),
            "");
}

TEST(TokenRules, WhatIsOutOfRangeIsNamed) {
  EXPECT_THAT(refused({.presence_penalty = 2.5f}), HasSubstr("presence_penalty = 2.5, expected"));
  EXPECT_THAT(refused({.frequency_penalty = NAN}), HasSubstr("frequency_penalty = nan"));
  EXPECT_THAT(refused({.repetition_penalty = 0}), HasSubstr("repetition_penalty = 0"));
  EXPECT_THAT(refused({.repetition_penalty = INFINITY}), HasSubstr("repetition_penalty = inf"));
  EXPECT_THAT(refused({.logit_bias = {{7, 101}}}), HasSubstr("logit_bias of token 7 = 101"));
  EXPECT_THAT(refused({.logit_bias = std::vector<TokenBias>(kMostBiases + 1)}),
              HasSubstr("logit_bias has 1025 entries; at most 1024"));
  EXPECT_THAT(refused({.allowed_token_ids = std::vector<TokenId>(kMostAllowedTokens + 1)}),
              HasSubstr("allowed_token_ids has 262145 entries"));
  EXPECT_THAT(refused({.bad_words = std::vector<std::string>(kMostBadWords + 1, "a")}),
              HasSubstr("bad_words has 129 entries"));
  EXPECT_THAT(refused({.bad_words = {""}}), HasSubstr("bad_words has a text of 0 bytes"));
  EXPECT_THAT(refused({.bad_words = {std::string(65, 'a')}}), HasSubstr("of 65 bytes; use 1..64"));
}

}  // namespace
}  // namespace kvhive::testing
