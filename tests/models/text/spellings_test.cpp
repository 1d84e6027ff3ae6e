#include "models/text/spellings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/text/tokenizer_parser.hpp"
#include "tests/models/text/small_tokenizers.hpp"

namespace kvhive::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<TokenId>;

TEST(Spellings, AWordIsSpelledAtTheBeginningAndBehindASpace) {
  const Tokenizer tokenizer = parse_tokenizer(small_byte_level(), "test").value();
  EXPECT_THAT(spellings(tokenizer, {"h"}).value(), ElementsAre(Tokens{'h'}, Tokens{260}));
  EXPECT_THAT(spellings(tokenizer, {"  h"}).value(), ElementsAre(Tokens{'h'}, Tokens{260}))
      << "spaces before it do not count";
  EXPECT_THAT(spellings(tokenizer, {"hello"}).value(), ElementsAre(Tokens{259}))
      << "behind a space it is the space and the same";
  EXPECT_THAT(spellings(tokenizer, {"hi"}).value(),
              ElementsAre(Tokens{'h', 'i'}, Tokens{260, 'i'}));
}

TEST(Spellings, TheSpaceMayMakeItFewerTokens) {
  auto json = small_byte_level();
  json["model"]["vocab"]["\u0120hi"] = 264;
  json["model"]["merges"].push_back("\u0120h i");
  const Tokenizer tokenizer = parse_tokenizer(json, "test").value();
  EXPECT_THAT(spellings(tokenizer, {"hi"}).value(), ElementsAre(Tokens{'h', 'i'}, Tokens{264}));
}

TEST(Spellings, SpecialTokensAreNotAdded) {
  const Tokenizer tokenizer = parse_tokenizer(small_sentencepiece(), "test").value();
  const auto words = spellings(tokenizer, {"ab", "a"}).value();
  ASSERT_FALSE(words.empty());
  for (const auto& word : words)
    for (const TokenId token : word) EXPECT_GT(token, 2);
}

TEST(Spellings, ABlankWordHasNone) {
  const Tokenizer tokenizer = parse_tokenizer(small_byte_level(), "test").value();
  EXPECT_THAT(spellings(tokenizer, {" "}).value(), IsEmpty());
  EXPECT_THAT(spellings(tokenizer, {}).value(), IsEmpty());
}

TEST(Spellings, BytesThatAreNoTextAreRefused) {
  const Tokenizer tokenizer = parse_tokenizer(small_byte_level(), "test").value();
  EXPECT_EQ(spellings(tokenizer, {"\xff"}).error().code, Errc::bad_argument);
}

}  // namespace
}  // namespace kvhive::testing
