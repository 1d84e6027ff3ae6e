#include "hashing/block_hash.hpp"

#define XXH_INLINE_ALL
#include <sys/random.h>
#include <xxhash.h>

#include <array>
#include <cstring>

#include "base/check.hpp"
#include "hashing/sha256.hpp"

namespace kvhive {
namespace {

// The three kinds of input start with different words and have different lengths, so that none can
// pass for another: a root is {tag, group and domain}, a block {parent, tokens}, a block with an
// extra key {parent, tokens, extra, tag}.
constexpr std::uint64_t kRootTag = 0x6b76686976652d72;   // "kvhive-r"
constexpr std::uint64_t kExtraTag = 0x6b76686976652d78;  // "kvhive-x"
/// In front of a digest of rows, so that it is never one of tokens.
constexpr std::uint64_t kRowsTag = 0x6b76686976652d65;  // "kvhive-e"

constexpr std::size_t kStackTokens = 1024;

/// The part of the secret that SHA-256 is keyed with.
std::span<const std::byte> key_of(const HashSecret& secret) {
  return std::span(secret.bytes).first(32);
}

/// A digest of zeros would say that there is no extra key.
ExtraKey not_none(ExtraKey digest) {
  if (is_none(digest)) digest[0] = 1;
  return digest;
}

}  // namespace

HashSecret random_hash_secret() {
  HashSecret secret;
  std::size_t filled = 0;
  while (filled < secret.bytes.size()) {
    const ssize_t got = getrandom(secret.bytes.data() + filled, secret.bytes.size() - filled, 0);
    KV_CHECK(got > 0, "getrandom");
    filled += static_cast<std::size_t>(got);
  }
  return secret;
}

Hash128 BlockHasher::name_of(const void* bytes, std::size_t count) const {
  Hash128 name;
  if (algorithm_ == HashAlgorithm::sha256) [[unlikely]] {
    const auto [low, high] =
        sha256_128({key_of(*secret_), {static_cast<const std::byte*>(bytes), count}});
    name = {low, high};
  } else {
    const XXH128_hash_t value =
        XXH3_128bits_withSecret(bytes, count, secret_->bytes.data(), secret_->bytes.size());
    name = {value.low64, value.high64};
  }
#ifdef KVHIVE_TEST_HASH_BITS  // of tests/pool/short_hash_test.cpp: names that collide all the time
  const std::uint64_t few = name.low & ((std::uint64_t{1} << KVHIVE_TEST_HASH_BITS) - 1);
  name = {few, few * 0x9e3779b97f4a7c15};
#endif
  return name;
}

Hash128 BlockHasher::root(DomainId domain, GroupId group) const {
  const std::uint64_t input[2] = {kRootTag, std::uint64_t{group.value} << 16 | domain.value};
  return name_of(input, sizeof input);
}

Hash128 BlockHasher::child(Hash128 parent, std::span<const TokenId> tokens,
                           const ExtraKey& extra) const {
  constexpr std::size_t kExtraBytes = sizeof(ExtraKey) + sizeof kExtraTag;
  alignas(16) std::array<std::byte, sizeof parent + kStackTokens * sizeof(TokenId) + kExtraBytes>
      buffer;
  KV_CHECK(tokens.size() <= kStackTokens, tokens.size());

  std::byte* end = buffer.data();
  const auto append = [&end](const void* source, std::size_t bytes) {
    std::memcpy(end, source, bytes);
    end += bytes;
  };
  append(&parent, sizeof parent);
  append(tokens.data(), tokens.size_bytes());
  if (!is_none(extra)) [[unlikely]] {
    append(&extra, sizeof extra);
    append(&kExtraTag, sizeof kExtraTag);
  }
  return name_of(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
}

ExtraKey BlockHasher::digest(const ExtraKey& before, std::span<const TokenId> tokens) const {
  return not_none(
      sha256_128({key_of(*secret_), std::as_bytes(std::span(before)), std::as_bytes(tokens)}));
}

ExtraKey BlockHasher::digest(const ExtraKey& before, std::span<const ExtraKey> rows) const {
  return not_none(sha256_128({key_of(*secret_), std::as_bytes(std::span(&kRowsTag, 1)),
                              std::as_bytes(std::span(before)), std::as_bytes(rows)}));
}

void BlockHasher::extend(std::vector<Hash128>& chain, DomainId domain,
                         std::span<const TokenId> tokens, std::size_t tokens_per_block,
                         const ExtraKey& salt) const {
  Hash128 parent = chain.empty() ? root(domain) : chain.back();
  const std::size_t full_blocks = tokens.size() / tokens_per_block;
  chain.reserve(full_blocks);
  for (std::size_t block = chain.size(); block < full_blocks; ++block) {
    parent = child(parent, tokens.subspan(block * tokens_per_block, tokens_per_block),
                   block == 0 ? salt : kNoExtraKey);
    chain.push_back(parent);
  }
}

}  // namespace kvhive
