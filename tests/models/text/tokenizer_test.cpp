#include "models/text/detokenizer.hpp"
#include "models/text/tokenizer_parser.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/models/text/small_tokenizers.hpp"
#include "tests/support/temp_directory.hpp"

namespace kvhive {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

Tokenizer parse(const json& file) { return parse_tokenizer(file, "tokenizer.json").value(); }

Ids encode(const Tokenizer& tokenizer, std::string_view text, AddSpecial special = AddSpecial::no) {
  return tokenizer.encode(text, special).value();
}

const std::vector<std::string>& tricky_texts() {
  static const std::vector<std::string> texts{
      "",
      " ",
      "hello",
      "  two  spaces  ",
      "line\nline\r\n\n\ttab",
      "grüße, 漢字, עברית, हिन्दी",
      "🙂👩‍👩‍👧‍👦🇩🇪 e\u0301",
      std::string("nul\0byte", 8),
      "\u00a0\u3000\u200b",
      "▁ <0x41> <s",
      "\U0010FFFF",
  };
  return texts;
}

TEST(ByteLevelTokenizer, MergesWithinPieces) {
  const auto tokenizer = parse(small_byte_level());
  EXPECT_EQ(encode(tokenizer, "hello"), Ids{259});
  // " h" has the highest rank, so "hello" forms first and leaves the space alone.
  EXPECT_EQ(encode(tokenizer, "hello hello"), (Ids{259, ' ', 259}));
  EXPECT_EQ(encode(tokenizer, " hi"), (Ids{260, 'i'}));
  EXPECT_EQ(encode(tokenizer, "hel lo"), (Ids{256, 'l', ' ', 'l', 'o'}));
  EXPECT_EQ(encode(tokenizer, "é"), (Ids{0xC3, 0xA9}));
}

TEST(ByteLevelTokenizer, AddsSpecialTokensWhenAsked) {
  const auto tokenizer = parse(small_byte_level());
  EXPECT_EQ(encode(tokenizer, "hello", AddSpecial::yes), (Ids{261, 259}));
  EXPECT_EQ(encode(tokenizer, "", AddSpecial::yes), Ids{261});
}

TEST(ByteLevelTokenizer, FindsAddedTokensInText) {
  const auto tokenizer = parse(small_byte_level());
  EXPECT_EQ(encode(tokenizer, "he<|end|>he<tag>"), (Ids{256, 262, 256, 263}));
  EXPECT_EQ(encode(tokenizer, "<|end|"), (Ids{'<', '|', 'e', 'n', 'd', '|'}));
}

TEST(ByteLevelTokenizer, DecodesEverythingButSpecialTokens) {
  const auto tokenizer = parse(small_byte_level());
  EXPECT_EQ(decode(tokenizer, Ids{261, 259, 263, 262}), "hello<tag>");
  EXPECT_EQ(tokenizer.token_bytes(260), " h");
  EXPECT_EQ(tokenizer.token_bytes(0xC3), "\xC3");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(264), "");
  EXPECT_EQ(decode(tokenizer, Ids{0xC3, -5, 99999}), "\xEF\xBF\xBD");
}

TEST(ByteLevelTokenizer, RoundTripsAnyText) {
  const auto tokenizer = parse(small_byte_level());
  for (const auto& text : tricky_texts())
    EXPECT_EQ(decode(tokenizer, encode(tokenizer, text)), text);
}

TEST(ByteLevelTokenizer, AllBytesHaveTokens) {
  const auto tokenizer = parse(small_byte_level());
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(tokenizer.token_bytes(byte), std::string(1, static_cast<char>(byte)));
}

TEST(ByteLevelTokenizer, MergesMayBePairs) {
  auto file = small_byte_level();
  file["model"]["merges"] =
      json::parse(R"([["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["Ġ", "h"]])");
  EXPECT_EQ(encode(parse(file), "hello hi"), (Ids{259, 260, 'i'}));
}

TEST(ByteLevelTokenizer, StripFlagsSwallowSpaces) {
  auto file = small_byte_level();
  file["added_tokens"][2]["lstrip"] = true;
  file["added_tokens"][2]["rstrip"] = true;
  EXPECT_EQ(encode(parse(file), "he \u00a0<tag>\n he"), (Ids{256, 263, 256}));
}

TEST(ByteLevelTokenizer, LongestAddedTokenWins) {
  auto file = small_byte_level();
  auto longer = file["added_tokens"][2];
  longer["id"] = 264;
  longer["content"] = "<tag><tag>";
  file["added_tokens"].push_back(longer);
  EXPECT_EQ(encode(parse(file), "<tag><tag><tag>"), (Ids{264, 263}));
}

/// "<tok_0>" and more, each behind up to 40 further '<'.
json with_many_added_tokens(int count) {
  auto file = small_byte_level();
  for (int i = 0; i < count; ++i) {
    auto token = file["added_tokens"][2];
    token["id"] = 264 + i;
    token["content"] = std::string(i % 40, '<') + "<tok_" + std::to_string(i) + ">";
    file["added_tokens"].push_back(token);
  }
  return file;
}

TEST(ByteLevelTokenizer, AMegabyteOfBeginningsOfAddedTokensTakesNoQuadraticTime) {
  const auto tokenizer = parse(with_many_added_tokens(1090));
  const std::string beginnings(1 << 20, '<');
  // A quadratic algorithm would time out.
  EXPECT_EQ(encode(tokenizer, beginnings).size(), beginnings.size());
  EXPECT_EQ(encode(tokenizer, beginnings + "<tok_41>").back(), 264 + 41);
}

TEST(ByteLevelTokenizer, ARunOfAddedTokensThatAlmostContinueTakesNoQuadraticTime) {
  auto file = small_byte_level();
  file["added_tokens"][1]["content"] = "a";
  file["added_tokens"][2]["content"] = std::string(20000, 'a') + "b";
  EXPECT_EQ(encode(parse(file), std::string(1 << 20, 'a')).size(), 1u << 20);
}

TEST(ByteLevelTokenizer, ARunOfAddedTokensOfWhiteSpaceTakesNoQuadraticTime) {
  auto file = small_byte_level();
  file["added_tokens"][2]["content"] = "\n";
  file["added_tokens"][2]["rstrip"] = true;
  EXPECT_EQ(encode(parse(file), std::string(1 << 20, '\n')), Ids(1 << 20, 263));
  EXPECT_EQ(encode(parse(file), "a\n \n  b"), (Ids{'a', 263, 263, 'b'}));
}

TEST(ByteLevelTokenizer, NfcAppliesToTextButNotToRawAddedTokens) {
  auto file = small_byte_level();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"][2]["content"] = "<e\u0301>";
  const auto tokenizer = parse(file);
  EXPECT_EQ(encode(tokenizer, "e\u0301"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(encode(tokenizer, "<e\u0301>"), Ids{263});
  file["added_tokens"][2]["normalized"] = true;  // then both spellings are the token
  EXPECT_EQ(encode(parse(file), "<é><e\u0301>"), (Ids{263, 263}));
}

TEST(SentencePieceTokenizer, MarksSpacesAndFallsBackToBytes) {
  const auto tokenizer = parse(small_sentencepiece());
  EXPECT_EQ(encode(tokenizer, "ab"), Ids{264});
  EXPECT_EQ(encode(tokenizer, "ab ab"), (Ids{264, 264}));
  EXPECT_EQ(encode(tokenizer, "b"), (Ids{259, 261}));
  EXPECT_EQ(encode(tokenizer, "a\né"), (Ids{262, 3 + '\n', 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(encode(tokenizer, "ab", AddSpecial::yes), (Ids{1, 264}));
  // The normalizer runs on each stretch between added tokens.
  EXPECT_EQ(encode(tokenizer, "a</s>a"), (Ids{262, 2, 262}));
}

TEST(SentencePieceTokenizer, DecodesWithoutThePrefixSpace) {
  const auto tokenizer = parse(small_sentencepiece());
  EXPECT_EQ(decode(tokenizer, Ids{1, 264, 264, 2}), "ab ab");
  EXPECT_EQ(tokenizer.token_bytes(264), " ab");
  EXPECT_EQ(tokenizer.token_bytes(3 + 0xC3), "\xC3");
  EXPECT_EQ(decode(tokenizer, Ids{3 + 0xF0, 3 + 0x9F, 3 + 0x99, 3 + 0x82}), "🙂");
}

TEST(SentencePieceTokenizer, RoundTripsTextWithoutTheSpaceMark) {
  const auto tokenizer = parse(small_sentencepiece());
  for (const auto& text : tricky_texts()) {
    if (text.find("▁") != std::string::npos) continue;
    EXPECT_EQ(decode(tokenizer, encode(tokenizer, text)), text);
  }
}

TEST(SentencePieceTokenizer, MetaspaceTakesTheNormalizersPlace) {
  auto file = small_sentencepiece();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  file["decoder"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  const auto tokenizer = parse(file);
  EXPECT_EQ(encode(tokenizer, "ab ab"), (Ids{264, 264}));
  EXPECT_EQ(encode(tokenizer, "a</s>a"), (Ids{262, 2, 260}));  // only the first stretch gets a mark
  EXPECT_EQ(decode(tokenizer, Ids{264, 264}), "ab ab");
}

TEST(SentencePieceTokenizer, AMegabyteIsOnePiece) {
  const auto tokenizer = parse(small_sentencepiece());
  EXPECT_EQ(encode(tokenizer, std::string(1 << 20, 'a')).size(), 1u << 20);
}

TEST(Tokenizer, RefusesInvalidUtf8NamingTheByte) {
  const auto tokens = parse(small_byte_level()).encode("abc\xff", AddSpecial::no);
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, Errc::bad_argument);
  EXPECT_THAT(tokens.error().text, HasSubstr("byte 3"));
}

TEST(Tokenizer, ThreadsMayShareIt) {
  const auto tokenizer = parse(small_byte_level());
  const auto expected = encode(tokenizer, "hello <tag> hello 🙂");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        EXPECT_EQ(encode(tokenizer, "hello <tag> hello 🙂"), expected);
    });
  for (auto& thread : threads) thread.join();
}

TEST(Tokenizer, LoadNamesItsFile) {
  const TempDirectory directory;
  EXPECT_EQ(load_tokenizer(directory.path()).error().code, Errc::not_found);
  directory.write("tokenizer.json", "{");
  EXPECT_THAT(load_tokenizer(directory.path()).error().text, HasSubstr("tokenizer.json"));
  directory.write("tokenizer.json", small_byte_level().dump());
  EXPECT_EQ(load_tokenizer(directory.path())->vocab_size(), 264);
}

TEST(Tokenizer, EveryLostOrIllTypedPartIsAnErrorOrStillWorks) {
  for (const auto& file : {small_byte_level(), small_sentencepiece()}) {
    const auto flat = file.flatten();
    std::size_t index = 0;
    for (const auto& [pointer, value] : flat.items()) {
      if (index++ % 7 != 0 && pointer.starts_with("/model/vocab")) continue;  // enough of 260 alike
      for (const json& odd :
           {json(nullptr), json(-1), json("?"), json::array({1, "x"}), json::object()}) {
        auto broken = file;
        broken[json::json_pointer(pointer)] = odd;
        const auto tokenizer = parse_tokenizer(broken, "tokenizer.json");
        if (tokenizer)
          EXPECT_TRUE(tokenizer->encode("hello ab 🙂", AddSpecial::yes)) << pointer << odd;
        else
          EXPECT_THAT(tokenizer.error().text, HasSubstr("tokenizer.json")) << pointer << odd;
      }
    }
  }
}

TEST(Tokenizer, RefusesUnknownKindsAndFields) {
  const auto refused = [](const json& changes, const char* named) {
    auto file = small_byte_level();
    file.merge_patch(changes);
    const auto tokenizer = parse_tokenizer(file, "tokenizer.json");
    return !tokenizer && tokenizer.error().text.find(named) != std::string::npos;
  };
  EXPECT_TRUE(refused({{"model", {{"type", "Unigram"}}}}, "Unigram"));
  EXPECT_TRUE(refused({{"model", {{"dropout", 0.1}}}}, "dropout"));
  EXPECT_TRUE(refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, "end_of_word_suffix"));
  EXPECT_TRUE(refused({{"model", {{"vocab", {{"a", nullptr}}}}}}, "255 of 256"));
  EXPECT_TRUE(refused({{"model", {{"vocab", {{"a", 5}}}}}}, "no other token"));
  EXPECT_TRUE(refused({{"model", {{"merges", {"q q"}}}}}, "q q"));
  EXPECT_TRUE(refused({{"decoder", {{"type", "WordPiece"}}}}, "WordPiece"));
  EXPECT_TRUE(refused({{"post_processor", {{"type", "BertProcessing"}}}}, "BertProcessing"));
}

}  // namespace
}  // namespace kvhive
