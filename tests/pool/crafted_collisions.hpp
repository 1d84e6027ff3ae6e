#pragma once
// Blocks made to collide under XXH3. Making them is possible for 128 bits as for 64, but needs the
// hash secret. Each pool draws its own secret, which no process outside the pool knows. In the
// pool, tokens are compared, so that a collision is no hit.
//
// XXH3 mixes words of the input with words of the secret and multiplies the results. An input word
// equal to its word of the secret makes a product zero for any other factor. The other factor can
// then have any value; it also enters a plain sum, which another input word corrects.

#include <cstdint>
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "hashing/block_hash.hpp"

namespace kvhive::testing {

/// The default secret in xxHash's sources, which is public.
inline HashSecret secret_of_xxh3() {
  HashSecret secret;
  static_assert(sizeof secret.bytes == sizeof XXH3_kSecret);
  std::memcpy(secret.bytes.data(), XXH3_kSecret, sizeof XXH3_kSecret);
  return secret;
}

/// A block's tokens as the 64-bit words the hash reads: two tokens per word, the first in the low
/// half.
class Words {
 public:
  explicit Words(std::size_t tokens) : words_(tokens / 2) {}
  std::uint64_t& operator[](std::size_t i) { return words_[i]; }
  std::vector<TokenId> tokens() const {
    std::vector<TokenId> tokens(words_.size() * 2);
    std::memcpy(tokens.data(), words_.data(), tokens.size() * sizeof(TokenId));
    return tokens;
  }

 private:
  std::vector<std::uint64_t> words_;
};

inline std::uint64_t word_of_secret(std::size_t byte) {
  std::uint64_t word = 0;
  std::memcpy(&word, XXH3_kSecret + byte, sizeof word);
  return word;
}

/// Makes `count` blocks of 16 tokens that have the same name after `parent`. They collide in XXH3's
/// path for 65 to 96 bytes (xxhash.h, XXH3_len_17to128_128b). The input is {parent, tokens}, ten
/// words. The low half of the state mixes in words 6 and 7, then the parent, then words 8 and 9.
inline std::vector<std::vector<TokenId>> colliding_blocks_of_16(Hash128 parent, std::size_t count) {
  constexpr std::uint64_t kName = 0x6b7668697665;  // the state after every block; any value works
  const std::uint64_t zero_6 = word_of_secret(48), zero_8 = word_of_secret(16);
  std::uint64_t ours[10] = {parent.low, parent.high, 1, 2, 3, 4};
  const auto* bytes = reinterpret_cast<const xxh_u8*>(ours);
  std::uint64_t before =
      sizeof ours * XXH_PRIME64_1 + XXH3_mix16B(bytes + 32, XXH3_kSecret + 64, 0);
  before = (before ^ (ours[4] + ours[5])) + XXH3_mix16B(bytes + 16, XXH3_kSecret + 32, 0);
  const std::uint64_t between = XXH3_mix16B(bytes, XXH3_kSecret, 0);

  std::vector<std::vector<TokenId>> blocks;
  for (std::uint64_t free = 0; free < count; ++free) {
    Words words(16);
    for (std::size_t i = 0; i < 4; ++i) words[i] = ours[2 + i];
    words[4] = zero_6;
    words[5] = free * 0x9e3779b97f4a7c15;
    words[6] = zero_8;
    words[7] = (((before ^ (words[4] + words[5])) + between) ^ kName) - zero_8;
    blocks.push_back(words.tokens());
  }
  return blocks;
}

/// Makes `count` blocks of 64 tokens that have the same name after any parent. They collide in the
/// path for more than 240 bytes: in two stripes of a lane, the low half equals the secret's (the
/// product is zero), and the sum of the two high halves is the same in all blocks.
inline std::vector<std::vector<TokenId>> colliding_blocks_of_64(std::size_t count) {
  std::vector<std::vector<TokenId>> blocks;
  for (std::uint64_t free = 0; free < count; ++free) {
    Words words(64);
    for (std::size_t i = 0; i < 32; ++i) words[i] = i;
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const std::uint64_t gain = (free >> lane & 1) * (lane + 1) + free * 0x10001;
      // Stripes 1 and 2; the parent has the first two words of stripe 0.
      words[6 + lane] = (1000 + gain) << 32 | (word_of_secret(8 + 8 * lane) & 0xffffffff);
      words[14 + lane] = (5000 - gain) << 32 | (word_of_secret(16 + 8 * lane) & 0xffffffff);
    }
    blocks.push_back(words.tokens());
  }
  return blocks;
}

/// Two blocks of 16 tokens that collide under one secret in 2^27 instead of one in 2^128. The first
/// two words are a word and its complement; the other block has both words complemented.
///
/// \source  github.com/Cyan4973/xxHash/issues/1127
inline std::pair<std::vector<TokenId>, std::vector<TokenId>> complementary_blocks(
    std::uint64_t seed) {
  Words one(16), other(16);
  for (std::size_t i = 0; i < 8; ++i) one[i] = other[i] = seed * 0x9e3779b97f4a7c15 + i;
  one[1] = ~one[0];
  other[0] = ~one[0];
  other[1] = ~one[1];
  return {one.tokens(), other.tokens()};
}

}  // namespace kvhive::testing
