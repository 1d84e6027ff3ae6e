#include "hashing/cache_salt.hpp"

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <string>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// So that no other kind of extra key is ever the digest of the same bytes. Its zero byte belongs
/// to it.
constexpr std::string_view kKind{"kvhive cache salt", sizeof "kvhive cache salt"};

}  // namespace

ExtraKey salt_key(std::string_view salt) {
  if (salt.empty()) return kNoExtraKey;
  const std::string input = std::string(kKind).append(salt);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  KV_CHECK(EVP_Digest(input.data(), input.size(), digest.data(), nullptr, EVP_sha256(), nullptr) ==
           1);
  ExtraKey key{};
  for (std::size_t i = 0; i < sizeof key; ++i) key[i / 8] = key[i / 8] << 8 | digest[i];
  return key;
}

}  // namespace kvhive
