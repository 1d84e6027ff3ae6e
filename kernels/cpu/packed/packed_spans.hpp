#pragma once
// The parts of packed_attention that are compiled for AVX-512 BF16 and AMX, or emulated
// (kernels/cpu/instructions/README.md).

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/packed/packed_codes.hpp"
#include "kernels/cpu/packed/packed_plan.hpp"

namespace kvhive {

inline constexpr std::size_t kLeastWideBytes = 16 << 10;

/// One thread's memory: parts of one buffer, each aligned to 64 bytes.
struct PackedScratch {
  void* q = nullptr;        ///< [rows, D] numbers (DotNumber)
  float* scores = nullptr;  ///< [rows, kChunkTokens]
  void* weights = nullptr;  ///< [rows, kChunkTokens] numbers
  /// [kChunkTokens, D] elements that are converted or moved, at least kLeastWideBytes
  std::byte* wide = nullptr;
  KvRange* ranges = nullptr;  ///< [head rows] the part of the chunk that a row sees
  float* span = nullptr;      ///< [rows, state] of the current span
  float* total = nullptr;     ///< [rows, state] of all spans so far
};

/// Floats of one row's state: acc [D], the largest score so far in units of log2, the sum of the
/// weights relative to it, and padding to whole cache lines.
static constexpr std::int64_t packed_state_floats(std::int64_t head_size) { return head_size + 16; }

/// Attention over packed pages by one arithmetic.
struct PackedFunctions {
  /// Computes spans first_span..end_span-1 of a tile. Writes the results of an unsplit tile to
  /// args.out, the states of a split one to `stored`.
  ///
  /// \param codes of args.kv.dtype; not read if that is bf16
  void (*attend_spans)(const PagedAttentionArgs& args, const Bf16OfCodes& codes,
                       const PackedTile& tile, std::int32_t first_span, std::int32_t end_span,
                       const PackedScratch& scratch, float* stored);
  /// Merges the states of a split tile and writes its results.
  void (*merge_spans)(const PagedAttentionArgs& args, const PackedTile& tile,
                      const PackedScratch& scratch, float* stored);
  std::int32_t head_rows;    ///< query rows of one kv head that share a pass over its KV
  std::size_t number_bytes;  ///< of a query's element or a weight in the scratch
};

namespace native {
extern const PackedFunctions kPackedDots;   ///< by bf16 dot products
extern const PackedFunctions kPackedTiles;  ///< by tiles
}  // namespace native
namespace multiplied {
extern const PackedFunctions kPackedDots;  ///< the same bits by multiplications (dots.hpp)
}
namespace emulated {  // in the library of the tests
extern const PackedFunctions kPackedDots;
extern const PackedFunctions kPackedTiles;
}  // namespace emulated
namespace emulated_multiplied {
extern const PackedFunctions kPackedDots;
}

struct PackedKernels {
  PackedFunctions dots, multiplied_dots, tiles;
};
/// For tests: what packed_attention() calls from now on.
void use_packed_kernels(const PackedKernels& all);

}  // namespace kvhive
