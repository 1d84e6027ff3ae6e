#pragma once
// Writes whole token groups into PageLayout::packed as bf16, transposed in registers. Compiled for
// AVX-512, or emulated (kernels/cpu/instructions/README.md).

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

struct PackedWriters {
  GroupWriter keys = nullptr;
  GroupWriter values = nullptr;
  /// Of rows of f32; they round as bf16_of_float does. They ignore `way`: 16 tokens of 8 heads of
  /// 128 take 64 KiB, which do not fit into L1, so the next ones are always prefetched into L2.
  GroupWriter float_keys = nullptr;
  GroupWriter float_values = nullptr;
};

namespace native {
extern const PackedWriters kPackedWriters;  ///< where packed_attention() runs
}  // namespace native
namespace emulated {  // in the library of the tests
extern const PackedWriters kPackedWriters;
}  // namespace emulated

}  // namespace kvhive
