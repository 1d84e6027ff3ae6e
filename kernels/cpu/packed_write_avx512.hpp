#pragma once
// Writes whole token groups of bf16 into PageLayout::packed, transposed in registers. Compiled for
// AVX-512; called only where packed_attention is.

#include <cstddef>
#include <cstdint>

namespace kvhive {

enum class Stores { cached, streamed };

/// The rows of 16 tokens of one kv head.
struct TokenRows {
  const std::byte* first = nullptr;  ///< [D] bf16
  std::int64_t stride = 0;           ///< bytes from one token to the next
  std::int32_t D = 0;
  const std::byte* next = nullptr;  ///< as many bytes, prefetched meanwhile
};

/// \param page address of the group's first line, aligned to 64 bytes
/// \param S tokens per block
void write_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores);
void write_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores);

}  // namespace kvhive
