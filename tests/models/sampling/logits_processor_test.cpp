#include "models/sampling/logits_processor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "models/sampling/sampler.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kVocab = 6;

using Words = std::vector<std::vector<TokenId>>;

std::vector<float> processed(const TokenRules& rules, std::vector<float> logits,
                             std::vector<TokenId> answer, std::vector<TokenId> prompt = {},
                             const Words& bad_words = {}, std::vector<TokenId> ends = {}) {
  const auto vocab = static_cast<std::uint32_t>(logits.size());
  const auto processor = LogitsProcessor::make(rules, bad_words, prompt, std::move(ends), vocab);
  EXPECT_TRUE(processor.has_value()) << processor.error().text;
  if (*processor) (*processor)->apply(logits, answer);
  return logits;
}

const std::vector<float> kLogits = {1, 2, -3, 4, 0, 5};

TEST(LogitsProcessor, ThereIsNoneForRulesThatChangeNothing) {
  EXPECT_EQ(LogitsProcessor::make({}, {}, {}, {}, kVocab).value(), nullptr);
}

TEST(LogitsProcessor, PresenceAndFrequencyCountTheAnswerOnly) {
  EXPECT_THAT(processed({.presence_penalty = 0.5f}, kLogits, {0, 0, 2}, {1, 5}),
              ElementsAre(0.5f, 2, -3.5f, 4, 0, 5));
  EXPECT_THAT(processed({.frequency_penalty = 0.5f}, kLogits, {0, 0, 2}, {1, 5}),
              ElementsAre(0, 2, -3.5f, 4, 0, 5));
  EXPECT_THAT(processed({.presence_penalty = -1, .frequency_penalty = 2}, kLogits, {3, 3}),
              ElementsAre(1, 2, -3, 1, 0, 5));
}

TEST(LogitsProcessor, RepetitionCountsPromptAndAnswerOnce) {
  EXPECT_THAT(processed({.repetition_penalty = 2}, kLogits, {3, 3, 2}, {3, 5, 5, 2}),
              ElementsAre(1, 2, -6, 2, 0, 2.5f));
}

TEST(LogitsProcessor, RepetitionComesBeforeWhatIsTaken) {
  EXPECT_THAT(processed({.presence_penalty = 1, .repetition_penalty = 2}, kLogits, {3}),
              ElementsAre(1, 2, -3, 1, 0, 5));
}

TEST(LogitsProcessor, BiasesAreAddedBeforePenalties) {
  EXPECT_THAT(
      processed({.repetition_penalty = 2, .logit_bias = {{3, 2}, {0, -3}}}, kLogits, {3, 0}),
      ElementsAre(-4, 2, -3, 3, 0, 5));
}

TEST(LogitsProcessor, OnlyAllowedTokensArePossibleAlsoWithABias) {
  EXPECT_THAT(
      processed({.logit_bias = {{5, 100}, {1, 1}}, .allowed_token_ids = {1, 4, 1}}, kLogits, {}),
      ElementsAre(kNever, 3, kNever, kNever, 0, kNever));
}

TEST(LogitsProcessor, EndTokensAreImpossibleBeforeMinTokens) {
  const TokenRules rules{.min_tokens = 2};
  EXPECT_THAT(processed(rules, kLogits, {0}, {}, {}, {5, 3, 77}),
              ElementsAre(1, 2, -3, kNever, 0, kNever));
  EXPECT_EQ(processed(rules, kLogits, {0, 1}, {}, {}, {5, 3}), kLogits);
}

TEST(LogitsProcessor, OnlyTheLastTokenOfABadWordIsForbiddenWhereTheOthersStand) {
  const TokenRules rules{.bad_words = {"some", "words"}};
  const Words words = {{4}, {1, 2, 5}};
  EXPECT_THAT(processed(rules, kLogits, {}, {1, 2}, words), ElementsAre(1, 2, -3, 4, kNever, 5))
      << "the prompt does not count";
  EXPECT_THAT(processed(rules, kLogits, {2, 1}, {}, words), ElementsAre(1, 2, -3, 4, kNever, 5));
  EXPECT_THAT(processed(rules, kLogits, {3, 1, 2}, {}, words),
              ElementsAre(1, 2, -3, 4, kNever, kNever));
}

TEST(LogitsProcessor, TokensThatTheModelDoesNotHaveAreRefusedByTheirField) {
  const auto error = [](const TokenRules& rules, const Words& words = {}) {
    const auto made = LogitsProcessor::make(rules, words, {}, {}, kVocab);
    return made ? std::string() : made.error().text;
  };
  EXPECT_THAT(error({.logit_bias = {{6, 1}}}), HasSubstr("logit_bias: token id 6"));
  EXPECT_THAT(error({.allowed_token_ids = {0, -1}}), HasSubstr("allowed_token_ids: token id -1"));
  EXPECT_THAT(error({.bad_words = {"x"}}, {{0, 9}}), HasSubstr("bad_words: token id 9"));
}

TEST(LogitsProcessor, WhatIsReportedOfATokenIsOfTheLogitsBefore) {
  const auto changed = processed({.logit_bias = {{5, -100}}}, kLogits, {});
  const Sampled greedy = sample(kLogits, changed, {}, 0);
  EXPECT_EQ(greedy.token, 3);
  std::uint32_t rank = 0;
  EXPECT_EQ(greedy.logprob, logprob_of(kLogits, 3, rank).logprob);
  const Sampled drawn = sample(kLogits, changed, {.temperature = 0.01f, .seed = 3}, 0);
  EXPECT_EQ(drawn, greedy);
  EXPECT_EQ(sample(kLogits, kLogits, {.temperature = 1, .seed = 3}, 7),
            sample(kLogits, {.temperature = 1, .seed = 3}, 7));
}

/// Against a plain reading of the rules, one token after the other.
TEST(LogitsProcessor, RandomRulesDoWhatTheirNamesSay) {
  std::mt19937 random(11);
  const auto below = [&](std::uint32_t end) { return random() % end; };
  const auto tokens = [&](std::uint32_t most) {
    std::vector<TokenId> list(below(most + 1));
    for (TokenId& token : list) token = TokenId(below(40));
    return list;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(40);
    for (float& logit : logits) logit = static_cast<float>(int(below(2000)) - 1000) / 64;
    TokenRules rules;
    rules.presence_penalty = below(2) == 0 ? 0 : static_cast<float>(int(below(33)) - 16) / 8;
    rules.frequency_penalty = below(2) == 0 ? 0 : static_cast<float>(int(below(33)) - 16) / 8;
    rules.repetition_penalty = below(2) == 0 ? 1 : static_cast<float>(1 + below(32)) / 8;
    rules.min_tokens = below(6);
    for (const TokenId token : tokens(4)) rules.logit_bias.push_back({token, float(below(9)) - 4});
    std::erase_if(rules.logit_bias, [seen = std::set<TokenId>()](const TokenBias& each) mutable {
      return !seen.insert(each.token).second;
    });
    if (below(3) == 0) rules.allowed_token_ids = tokens(30);
    Words words;
    for (std::uint32_t i = below(3); i > 0; --i)
      if (auto word = tokens(3); !word.empty()) words.push_back(word);
    rules.bad_words.resize(words.size(), "word");
    const auto prompt = tokens(20), answer = tokens(12), ends = tokens(3);
    std::map<TokenId, int> in_answer;
    for (const TokenId token : answer) ++in_answer[token];
    const std::set<TokenId> in_prompt(prompt.begin(), prompt.end());

    std::vector<float> expected = logits;
    for (TokenId token = 0; token < 40; ++token) {
      const auto has = [token](const auto& list) {
        return std::find(list.begin(), list.end(), token) != list.end();
      };
      float& logit = expected[token];
      if (!rules.allowed_token_ids.empty() && !has(rules.allowed_token_ids)) logit = kNever;
      for (const auto& word : words) {
        std::vector<TokenId> would_be = answer;
        would_be.push_back(token);
        if (would_be.size() >= word.size() &&
            std::equal(word.begin(), word.end(), would_be.end() - std::ptrdiff_t(word.size())))
          logit = kNever;
      }
      if (answer.size() < rules.min_tokens && has(ends)) logit = kNever;
      for (const TokenBias& each : rules.logit_bias)
        if (each.token == token) logit += each.bias;
      const bool is_repeated = in_answer.count(token) != 0 || in_prompt.count(token) != 0;
      if (is_repeated && logit > 0)
        logit /= rules.repetition_penalty;
      else if (is_repeated)
        logit *= rules.repetition_penalty;
      if (in_answer.count(token) == 0) continue;
      logit -= rules.frequency_penalty * static_cast<float>(in_answer[token]);
      logit -= rules.presence_penalty;
    }
    ASSERT_EQ(processed(rules, logits, answer, prompt, words, ends), expected) << round;
  }
}

/// Recorded by make beside-vllm. vLLM's CPU multiplies by a penalty's reciprocal, its GPU divides.
TEST(LogitsProcessor, DoesWhatVllmsSamplerDoes) {
  const char* const fresh = std::getenv("KVHIVE_VLLM_SAMPLER");
  std::ifstream file(fresh != nullptr ? fresh : KVHIVE_VLLM_SAMPLER_RECORD);
  std::size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const auto each = nlohmann::json::parse(line);
    TokenRules rules{.presence_penalty = each["presence_penalty"],
                     .frequency_penalty = each["frequency_penalty"],
                     .repetition_penalty = each["repetition_penalty"],
                     .min_tokens = each["min_tokens"],
                     .allowed_token_ids = each["allowed_token_ids"],
                     .bad_words = std::vector<std::string>(each["bad_words"].size(), "word")};
    for (const auto& [token, bias] : each["logit_bias"].items())
      rules.logit_bias.push_back({std::stoi(token), bias});
    const auto ours = processed(rules, each["logits"], each["answer"], each["prompt"],
                                each["bad_words"], each["end_tokens"]);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const auto& theirs = each["processed"][i];
      if (theirs.is_null())
        ASSERT_EQ(ours[i], kNever) << "row " << rows << ", token " << i;
      else
        ASSERT_NEAR(ours[i], theirs.get<float>(), 2e-5) << "row " << rows << ", token " << i;
    }
  }
  EXPECT_GE(rows, 150u);
}

}  // namespace
}  // namespace kvhive::testing
