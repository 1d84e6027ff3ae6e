// Compares kvhive's results with those of Hugging Face's tokenizers library (beside_tokenizers.py).

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_file.hpp"
#include "models/text/detokenizer.hpp"
#include "models/text/pre_tokenizer.hpp"
#include "models/text/tokenizer_parser.hpp"
#include "models/text/utf8.hpp"

namespace kvhive {
namespace {

using nlohmann::json;

const json& answers() {
  static const json read = read_json_object(KVHIVE_BESIDE_TOKENIZERS).value();
  return read;
}

TEST(BesideTokenizers, PatternsCutTextsAlike) {
  for (const auto& split : answers()["splits"]) {
    const json step{{"type", "Split"},
                    {"pattern", {{"Regex", split["pattern"]}}},
                    {"behavior", "Isolated"},
                    {"invert", false}};
    const auto pre_tokenizer = PreTokenizer::parse(step, "p");
    ASSERT_TRUE(pre_tokenizer) << pre_tokenizer.error().text;
    for (std::size_t i = 0; i < answers()["texts"].size(); ++i) {
      const std::string text = answers()["texts"][i];
      const auto pieces = pre_tokenizer->cut(text, Place::start);
      ASSERT_TRUE(pieces) << split["pattern"] << pieces.error().text;
      EXPECT_EQ(json(*pieces), split["pieces"][i]) << split["pattern"] << " " << text;
    }
  }
}

/// The code points that were assigned in Unicode 14.
std::vector<char32_t> assigned() {
  std::vector<char32_t> all;
  const auto& ranges = answers()["assigned"];
  for (std::size_t i = 0; i < ranges.size(); i += 2)
    for (char32_t c = 0; c < ranges[i + 1].get<char32_t>(); ++c)
      all.push_back(ranges[i].get<char32_t>() + c);
  return all;
}

TEST(BesideTokenizers, SetsHaveTheSameCodePoints) {
  std::string text;
  std::vector<char32_t> by_offset;
  for (const char32_t c : assigned()) {
    const std::size_t bytes = utf8_of(c).size();
    text += utf8_of(c);
    by_offset.resize(by_offset.size() + bytes, c);
  }
  for (const auto& wanted : answers()["sets"]) {
    const auto regex = Regex::compile(wanted["set"]);
    ASSERT_TRUE(regex) << regex.error().text;
    std::size_t count = 0;
    std::uint64_t digest = 0xCBF29CE484222325;
    const auto matches = regex->for_each_match(text, [&](std::size_t begin, std::size_t) {
      ++count;
      digest = (digest ^ by_offset[begin]) * 0x100000001B3;
    });
    ASSERT_TRUE(matches);
    EXPECT_EQ(count, wanted["count"].get<std::size_t>()) << wanted["set"];
    EXPECT_EQ(digest, std::stoull(wanted["fnv1a"].get<std::string>(), nullptr, 16))
        << wanted["set"];
  }
}

TEST(BesideTokenizers, AddedTokensAreFoundAlike) {
  const auto& added = answers()["added_tokens"];
  const auto tokenizer = parse_tokenizer(added["file"], "file");
  ASSERT_TRUE(tokenizer) << tokenizer.error().text;
  for (const auto& pair : added["cases"]) {
    const auto ids = tokenizer->encode(pair[0].get<std::string>(), AddSpecial::no);
    ASSERT_TRUE(ids) << ids.error().text;
    EXPECT_EQ(json(*ids), pair[1]) << pair[0];
  }
}

TEST(BesideTokenizers, MatchesEndTheTextBeforeThemAlike) {
  const json step{{"type", "Split"},
                  {"pattern", {{"String", " "}}},
                  {"behavior", "MergedWithPrevious"},
                  {"invert", false}};
  const auto pre_tokenizer = PreTokenizer::parse(step, "p").value();
  for (std::size_t i = 0; i < answers()["texts"].size(); ++i) {
    const std::string text = answers()["texts"][i];
    EXPECT_EQ(json(pre_tokenizer.cut(text, Place::start).value()), answers()["merged"][i]) << text;
  }
}

TEST(BesideTokenizers, ATokenizerBuiltAsGemmasGivesTheSameTokensAndText) {
  const auto& gemma = answers()["gemma"];
  const auto tokenizer = parse_tokenizer(gemma["file"], "file");
  ASSERT_TRUE(tokenizer) << tokenizer.error().text;
  for (const auto& one : gemma["cases"]) {
    const auto ids = tokenizer->encode(one[0].get<std::string>(), AddSpecial::yes);
    ASSERT_TRUE(ids) << ids.error().text;
    EXPECT_EQ(json(*ids), one[1]) << one[0];
    EXPECT_EQ(decode(*tokenizer, *ids), one[2].get<std::string>()) << one[0];
  }
}

}  // namespace
}  // namespace kvhive
