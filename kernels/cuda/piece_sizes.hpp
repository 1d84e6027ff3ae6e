#pragma once
// The borders at which a sequence's KV is cut into pieces: positions counted from its first token,
// the same for every kernel and plan. The first pieces are short, so that short sequences also keep
// a GPU busy.

#include <cstdint>

namespace kvhive {

struct PieceSizes {
  std::int32_t least = 64;  ///< tokens of the shortest piece; both are powers of two
  std::int32_t most = 1024;

  /// The end of the piece that contains position t.
  constexpr std::int32_t border_after(std::int32_t t) const {
    std::int32_t size = least;
    while (size < most && t >= kPiecesOfASize * size) size *= 2;
    return (t / size + 1) * size;
  }

 private:
  static constexpr std::int32_t kPiecesOfASize = 32;
};

/// \param reach tokens that a query looks back at most (0: no limit). Longer pieces would leave too
/// few of them to share out.
constexpr PieceSizes piece_sizes(std::int32_t least, std::int32_t reach) {
  PieceSizes sizes{least, least};
  while (sizes.most < 1024 && (reach == 0 || sizes.most * 32 <= reach)) sizes.most *= 2;
  return sizes;
}

}  // namespace kvhive
