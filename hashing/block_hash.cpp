#include "hashing/block_hash.hpp"

#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <sys/random.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// SHA-256 of the secret and of these bytes, cut to 128 bits.
std::array<std::uint64_t, 2> keyed_sha256(const HashSecret& secret,
                                          std::initializer_list<std::span<const std::byte>> parts) {
  // Once a thread: to look the algorithm up and to make a context costs more than to hash a block.
  static const std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> sha256(
      EVP_MD_fetch(nullptr, "SHA256", nullptr), EVP_MD_free);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), EVP_MD_CTX_free);
  constexpr std::size_t kKeyBytes = 32;
  std::array<std::byte, EVP_MAX_MD_SIZE> whole;
  bool is_done = EVP_DigestInit_ex2(context.get(), sha256.get(), nullptr) == 1 &&
                 EVP_DigestUpdate(context.get(), secret.bytes.data(), kKeyBytes) == 1;
  for (const std::span<const std::byte> part : parts)
    is_done = is_done && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  is_done =
      is_done && EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(whole.data()),
                                    nullptr) == 1;
  KV_CHECK(is_done, "EVP_Digest");
  std::array<std::uint64_t, 2> cut;
  std::memcpy(&cut, whole.data(), sizeof cut);
  return cut;
}

// The three kinds of input start with different words and have different lengths, so that none can
// pass for another: a root is {tag, group and domain}, a block {parent, tokens}, a block with an
// extra key {parent, tokens, extra, tag}.
constexpr std::uint64_t kRootTag = 0x6b76686976652d72;   // "kvhive-r"
constexpr std::uint64_t kExtraTag = 0x6b76686976652d78;  // "kvhive-x"

constexpr std::size_t kStackTokens = 1024;

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
        keyed_sha256(*secret_, {{static_cast<const std::byte*>(bytes), count}});
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
  ExtraKey digest =
      keyed_sha256(*secret_, {std::as_bytes(std::span(before)), std::as_bytes(tokens)});
  if (is_none(digest)) digest[0] = 1;  // that would say that there is no extra key
  return digest;
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
