#pragma once
// SHA-256 of a stream of little-endian 32-bit words: the digests that replay compares.

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvhive {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }

  void add(std::span<const std::uint32_t> words) {
    EVP_DigestUpdate(context_.get(), words.data(), words.size_bytes());
  }

  /// Lower-case hex; ends the stream.
  std::string finish() {
    unsigned char digest[32];
    EVP_DigestFinal_ex(context_.get(), digest, nullptr);
    constexpr char kHex[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : digest) text += {kHex[byte >> 4], kHex[byte & 15]};
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace kvhive
