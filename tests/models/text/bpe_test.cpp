#include "models/text/bpe.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvhive {
namespace {

/// Bytes are their own ids; merge number i makes token 256+i.
Bpe byte_bpe(const std::vector<std::pair<std::string, std::string>>& merges) {
  Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) {
    bpe.vocabulary.emplace(std::string(1, static_cast<char>(byte)), byte);
    bpe.byte_tokens.push_back(byte);
  }
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const TokenId merged = 256 + static_cast<TokenId>(rank);
    bpe.vocabulary.emplace(left + right, merged);
    bpe.merges[pair_key(bpe.vocabulary.at(left), bpe.vocabulary.at(right))] = {rank, merged};
  }
  return bpe;
}

std::vector<TokenId> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<TokenId> tokens;
  bpe.encode(piece, tokens);
  return tokens;
}

/// BPE by its definition: merges the leftmost pair of the lowest rank until there is none.
std::vector<TokenId> slow_encode(const Bpe& bpe, std::string_view piece) {
  std::vector<TokenId> tokens(piece.size());
  std::ranges::transform(piece, tokens.begin(),
                         [](char c) { return static_cast<unsigned char>(c); });
  while (true) {
    std::size_t best = tokens.size();
    Merge best_merge{UINT32_MAX, 0};
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = bpe.merges.find(pair_key(tokens[i], tokens[i + 1]));
      if (found != bpe.merges.end() && found->second.rank < best_merge.rank) {
        best = i;
        best_merge = found->second;
      }
    }
    if (best == tokens.size()) return tokens;
    tokens[best] = best_merge.merged;
    tokens.erase(tokens.begin() + best + 1);
  }
}

TEST(Bpe, LowestRankGoesFirst) {
  const auto bpe = byte_bpe({{"b", "c"}, {"a", "b"}});
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<TokenId>{'a', 256}));
  EXPECT_EQ(encode(bpe, "abd"), (std::vector<TokenId>{257, 'd'}));
}

TEST(Bpe, LeftmostOfEqualPairsGoesFirst) {
  const auto bpe = byte_bpe({{"a", "a"}});
  EXPECT_EQ(encode(bpe, "aaa"), (std::vector<TokenId>{256, 'a'}));
}

TEST(Bpe, MergesBuildOnMerges) {
  const auto bpe = byte_bpe({{"a", "b"}, {"ab", "ab"}, {"abab", "c"}});
  EXPECT_EQ(encode(bpe, "ababc"), std::vector<TokenId>{258});
}

TEST(Bpe, IgnoreMergesTakesWholePieces) {
  auto bpe = byte_bpe({{"a", "b"}});
  bpe.vocabulary.emplace("xyz", 999);
  EXPECT_EQ(encode(bpe, "xyz").size(), 3u);
  bpe.ignore_merges = true;
  EXPECT_EQ(encode(bpe, "xyz"), std::vector<TokenId>{999});
  EXPECT_EQ(encode(bpe, "xyzx").size(), 4u);
}

TEST(Bpe, AgreesWithTheDefinitionOnRandomMerges) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> parts{"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 12; ++i) {
      const auto left = parts[random() % parts.size()];
      const auto right = parts[random() % parts.size()];
      if (std::ranges::find(parts, left + right) != parts.end()) continue;
      merges.emplace_back(left, right);
      parts.push_back(left + right);
    }
    const auto bpe = byte_bpe(merges);
    for (int i = 0; i < 50; ++i) {
      std::string piece(random() % 40, ' ');
      for (char& c : piece) c = static_cast<char>('a' + random() % 3);
      ASSERT_EQ(encode(bpe, piece), slow_encode(bpe, piece)) << piece;
    }
  }
}

TEST(Bpe, AMegabyteInOnePieceTakesNoQuadraticTime) {
  const auto bpe = byte_bpe({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  EXPECT_EQ(encode(bpe, std::string(1 << 20, 'a')).size(),
            (1u << 20) / 8);  // a quadratic algorithm would time out
}

TEST(Bpe, CodePointsFallBackToBytesOrUnknown) {
  Bpe bpe;
  bpe.symbols = Bpe::Symbols::code_points;
  bpe.vocabulary = {{"é", 1}, {"x", 2}};
  bpe.unknown = 0;
  EXPECT_EQ(encode(bpe, "éx字🙂x"), (std::vector<TokenId>{1, 2, 0, 0, 2}));
  bpe.fuse_unknown = true;
  EXPECT_EQ(encode(bpe, "éx字🙂x"), (std::vector<TokenId>{1, 2, 0, 2}));
  for (int byte = 0; byte < 256; ++byte) bpe.byte_tokens.push_back(1000 + byte);
  EXPECT_EQ(encode(bpe, "é字"), (std::vector<TokenId>{1, 1000 + 0xE5, 1000 + 0xAD, 1000 + 0x97}));
}

}  // namespace
}  // namespace kvhive
