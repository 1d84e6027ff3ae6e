#pragma once
// Where a sequence's KV is cut into pieces: at positions counted from its first token, the same for
// whoever reads it. Short pieces in front, so that short sequences occupy a GPU, too.

#include <cstdint>

namespace kvhive {

struct PieceSizes {
  std::int32_t least = 64;  ///< tokens; both powers of two
  std::int32_t most = 1024;

  /// The end of the piece that position t is in.
  constexpr std::int32_t border_after(std::int32_t t) const {
    std::int32_t size = least;
    while (size < most && t >= kPiecesOfASize * size) size *= 2;
    return (t / size + 1) * size;
  }

 private:
  static constexpr std::int32_t kPiecesOfASize = 32;
};

/// For queries that look back over `reach` tokens at most (0: over all): so much only is there to
/// be shared out.
constexpr PieceSizes piece_sizes(std::int32_t least, std::int32_t reach) {
  PieceSizes sizes{least, least};
  while (sizes.most < 1024 && (reach == 0 || sizes.most * 32 <= reach)) sizes.most *= 2;
  return sizes;
}

}  // namespace kvhive
