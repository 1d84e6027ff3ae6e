#pragma once
// The inner order of a page of KV. Letters as in kernels/paged_kv.hpp.

#include <cstdint>
#include <string_view>

namespace kvhive {

/// How the elements of one block and head lie in memory.
enum class PageLayout : std::uint8_t {
  /// A token's D elements side by side, token_stride apart: HND (head by head, the default) or NHD
  /// (token by token), as the strides say.
  rows = 0,
  /// For bf16 dot products of CPUs: lines of 32 elements are a pair of dims for 16 tokens or a pair
  /// of tokens for 16 dims. K [D/32][S/16][16 dim pairs][16 tokens][2], V [D/16][S/2 token
  /// pairs][16 dims][2]; S is a multiple of 16, D of 32. token_stride means nothing.
  ///
  /// In bf16 a line is 64 bytes: what VDPBF16PS takes as it lies, in the order of memory; 16 lines
  /// are an AMX tile. Of 8-bit elements two successive lines share 64 bytes, 8 bytes of each in
  /// turn, [4][2 lines][8]: with the halves of their bf16 looked up byte by byte, the interleaving
  /// instructions (VPUNPCKLBW, VPUNPCKHBW) make the two lines in order. No other types.
  packed = 2,  ///< 1 was vLLM's x-packed layout, which is no longer supported
};

constexpr std::string_view to_string(PageLayout layout) {
  switch (layout) {
    case PageLayout::rows: return "rows";
    case PageLayout::packed: return "packed";
  }
  return "unknown";
}

}  // namespace kvhive
