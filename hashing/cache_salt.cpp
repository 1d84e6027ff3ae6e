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
constexpr std::string_view kSalt{"kvhive cache salt", sizeof "kvhive cache salt"};
constexpr std::string_view kAdapter{"kvhive adapter", sizeof "kvhive adapter"};

ExtraKey digest_of(const std::string& input) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  KV_CHECK(EVP_Digest(input.data(), input.size(), digest.data(), nullptr, EVP_sha256(), nullptr) ==
           1);
  ExtraKey key{};
  for (std::size_t i = 0; i < sizeof key; ++i) key[i / 8] = key[i / 8] << 8 | digest[i];
  return key;
}

}  // namespace

ExtraKey salt_key(std::string_view salt) {
  return salt.empty() ? kNoExtraKey : digest_of(std::string(kSalt).append(salt));
}

ExtraKey start_key(std::string_view salt, std::string_view adapter) {
  if (adapter.empty()) return salt_key(salt);
  // With its length in front, so that no name and salt are taken for another name and salt.
  const std::string length = std::to_string(adapter.size()) + ":";
  return digest_of(std::string(kAdapter).append(length).append(adapter).append(salt));
}

}  // namespace kvhive
