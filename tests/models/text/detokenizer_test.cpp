#include "models/text/detokenizer.hpp"

#include <gtest/gtest.h>

#include <random>

#include "models/text/tokenizer_parser.hpp"
#include "tests/models/text/small_tokenizers.hpp"

namespace kvhive {
namespace {

TEST(Detokenizer, HoldsBackIncompleteCharacters) {
  const auto tokenizer = parse_tokenizer(small_byte_level(), "t").value();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(259), "hello");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x99), "");
  EXPECT_EQ(detokenizer.push(0x82), "🙂");
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.push('!'), "\xEF\xBF\xBD!");
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, StripsTheFirstSpaceOnlyOnce) {
  const auto tokenizer = parse_tokenizer(small_sentencepiece(), "t").value();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(1), "");
  EXPECT_EQ(detokenizer.push(264), "ab");
  EXPECT_EQ(detokenizer.push(264), " ab");
}

TEST(Detokenizer, ConcatenatesToDecodeForAnyTokens) {
  std::mt19937 random(1);
  for (const auto& file : {small_byte_level(), small_sentencepiece()}) {
    const auto tokenizer = parse_tokenizer(file, "t").value();
    for (int round = 0; round < 500; ++round) {
      std::vector<TokenId> tokens(random() % 30);
      for (auto& token : tokens)
        token = static_cast<TokenId>(random() % (tokenizer.vocab_size() + 2));
      Detokenizer detokenizer(tokenizer);
      std::string text;
      for (const TokenId token : tokens) {
        const auto piece = detokenizer.push(token);
        ASSERT_EQ(first_invalid_utf8(piece), std::nullopt);
        text += piece;
      }
      ASSERT_EQ(text + detokenizer.finish(), decode(tokenizer, tokens));
    }
  }
}

}  // namespace
}  // namespace kvhive
