#pragma once

#include <atomic>

#include "kvhive/client.hpp"

namespace kvhive::bench {

/// Every request has a prompt of its own: no prefix hits.
inline GenerateRequest new_request(std::size_t prompt_tokens, std::uint32_t max_tokens) {
  static std::atomic<std::uint32_t> made{0};
  std::uint32_t salt = made++;
  GenerateRequest request;
  for (std::size_t i = 0; i < prompt_tokens; ++i, salt = salt * 1'664'525 + 1'013'904'223)
    request.prompt_tokens.push_back(static_cast<TokenId>((salt >> 8) % 1900 + 1));
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

}  // namespace kvhive::bench
