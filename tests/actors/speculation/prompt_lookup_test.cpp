#include "actors/speculation/prompt_lookup.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr PromptLookup kLookup{.drafts = 3, .longest = 4, .shortest = 2};

std::vector<TokenId> guess(const std::vector<TokenId>& text, const PromptLookup& lookup = kLookup,
                           std::size_t most = 100) {
  const auto found = look_up(text, lookup, most);
  return {found.begin(), found.end()};
}

TEST(PromptLookup, GuessesWhatFollowedTheSameTokensEarlier) {
  EXPECT_THAT(guess({1, 2, 3, 4, 5, 6, 9, 1, 2}), ElementsAre(3, 4, 5));
}

TEST(PromptLookup, GuessesNothingFromTextsThatRepeatNothing) {
  EXPECT_THAT(guess({}), IsEmpty());
  EXPECT_THAT(guess({1}), IsEmpty());
  EXPECT_THAT(guess({1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(guess({2, 5, 1, 2}), IsEmpty()) << "one token is too short";
}

TEST(PromptLookup, TheLongestRunCountsAndOfEquallyLongOnesTheFirst) {
  EXPECT_THAT(guess({2, 3, 7, 1, 2, 3, 8, 9, 9, 1, 2, 3}), ElementsAre(8, 9, 9));
  EXPECT_THAT(guess({1, 2, 7, 7, 1, 2, 8, 8, 1, 2}), ElementsAre(7, 7, 1));
  // Both are equal in more tokens than are looked for.
  EXPECT_THAT(guess({5, 1, 2, 3, 4, 7, 6, 1, 2, 3, 4, 8, 8, 6, 1, 2, 3, 4}), ElementsAre(7, 6, 1));
}

TEST(PromptLookup, ARunMayEndWithinItself) {
  EXPECT_THAT(guess({6, 6, 6}), ElementsAre(6)) << "as far as the text goes";
  EXPECT_THAT(guess({1, 2, 1, 2, 1, 2}), ElementsAre(1, 2));
}

TEST(PromptLookup, GuessesNoMoreThanItMay) {
  const std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 9, 1, 2};
  EXPECT_THAT(guess(text, kLookup, 2), ElementsAre(3, 4));
  EXPECT_THAT(guess(text, kLookup, 0), IsEmpty());
  EXPECT_THAT(guess(text, {.drafts = 0}), IsEmpty());
}

/// vLLM's definition, word by word: the longest n first, the earliest place that is followed by
/// something.
std::vector<TokenId> by_definition(const std::vector<TokenId>& text, const PromptLookup& lookup) {
  for (std::size_t n = lookup.longest; n >= lookup.shortest; --n)
    for (std::size_t start = 0; n < text.size() && start + n < text.size(); ++start) {
      if (!std::equal(text.end() - std::ptrdiff_t(n), text.end(),
                      text.begin() + std::ptrdiff_t(start)))
        continue;
      const std::size_t behind = start + n;
      const std::size_t end = std::min<std::size_t>(text.size(), behind + lookup.drafts);
      return {text.begin() + std::ptrdiff_t(behind), text.begin() + std::ptrdiff_t(end)};
    }
  return {};
}

TEST(PromptLookup, IsItsDefinitionOnRandomTexts) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  std::size_t found = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<TokenId> text(below(40));
    const std::uint32_t vocabulary = 2 + below(6);
    for (TokenId& token : text) token = static_cast<TokenId>(below(vocabulary));
    PromptLookup lookup{.drafts = 1 + below(6), .longest = 1 + below(5)};
    lookup.shortest = 1 + below(lookup.longest);
    const auto expected = by_definition(text, lookup);
    ASSERT_EQ(guess(text, lookup), expected);
    found += expected.empty() ? 0 : 1;
  }
  EXPECT_GT(found, 5000u);
}

/// What vLLM's proposer made of the same texts: recorded, or fresh (tests/beside/vllm_ngrams.py).
TEST(PromptLookup, GuessesWhatVllmsProposerGuesses) {
  const char* const fresh = std::getenv("KVHIVE_VLLM_NGRAMS");
  std::ifstream file(fresh != nullptr ? fresh : KVHIVE_VLLM_NGRAMS_RECORD);
  std::size_t texts = 0, guessed = 0;
  for (std::string line; std::getline(file, line); ++texts) {
    SCOPED_TRACE(line.substr(0, 400));
    const auto recorded = nlohmann::json::parse(line);
    const PromptLookup lookup{.drafts = recorded["most"],
                              .longest = recorded["longest"],
                              .shortest = recorded["shortest"]};
    const auto wanted = recorded["guess"].get<std::vector<TokenId>>();
    ASSERT_EQ(guess(recorded["text"], lookup), wanted);
    guessed += wanted.empty() ? 0 : 1;
  }
  EXPECT_GE(texts, 100u);
  EXPECT_GT(guessed, texts / 10);
}

}  // namespace
}  // namespace kvhive::testing
