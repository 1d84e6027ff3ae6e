#include "hashing/sha256.hpp"

#include <openssl/evp.h>

#include <cstring>
#include <memory>

#include "base/check.hpp"

namespace kvhive {

std::array<std::uint64_t, 2> sha256_128(std::initializer_list<std::span<const std::byte>> pieces) {
  // Once a thread: to look the algorithm up and to make a context costs more than to hash a block.
  static const std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> sha256(
      EVP_MD_fetch(nullptr, "SHA256", nullptr), EVP_MD_free);
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> whole;
  bool is_done = EVP_DigestInit_ex2(context.get(), sha256.get(), nullptr) == 1;
  for (const std::span<const std::byte> piece : pieces)
    is_done = is_done && EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1;
  is_done = is_done && EVP_DigestFinal_ex(context.get(), whole.data(), nullptr) == 1;
  KV_CHECK(is_done, "EVP_Digest");
  std::array<std::uint64_t, 2> cut;
  std::memcpy(&cut, whole.data(), sizeof cut);
  return cut;
}

}  // namespace kvhive
