#pragma once
// Writes whole token groups into PageLayout::packed as bf16, transposed in registers. Compiled for
// AVX-512; called only where packed_attention is.

#include <cstddef>
#include <cstdint>

#include "kernels/copy_way.hpp"

namespace kvhive {

enum class Stores { cached, streamed };

/// The rows of 16 tokens of one kv head.
struct TokenRows {
  const std::byte* first = nullptr;  ///< [D] bf16 or f32
  std::int64_t stride = 0;           ///< bytes from one token to the next
  std::int32_t D = 0;
  const std::byte* next = nullptr;  ///< as many bytes, prefetched meanwhile
};

/// \param page address of the group's first line, aligned to 64 bytes
/// \param S tokens per block
using GroupWriter = void (*)(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                             WriteWay way);

void write_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                     WriteWay way);
void write_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                       WriteWay way);
/// The same for rows of f32; rounds as bf16_of_float does. Ignores `way`: 16 tokens of 8 heads of
/// 128 take 64 KiB, which do not fit into L1, so the next ones are always prefetched into L2.
void write_float_key_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                           WriteWay way);
void write_float_value_group(const TokenRows& rows, std::byte* page, std::int32_t S, Stores stores,
                             WriteWay way);

}  // namespace kvhive
