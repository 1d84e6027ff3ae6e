#include "kernels/block_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/stream_copy.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kPieceBytes = 32 * 1024;   ///< of a block, copied by one thread at a time
constexpr std::size_t kStreamBytes = 16 * 1024;  ///< from this size on, stores bypass the caches
constexpr std::size_t kSerialBytes =
    128 * 1024;  ///< below this, waking threads costs more than it saves

/// A part of a block.
struct Piece {
  const std::byte* source;
  std::byte* destination;
  std::size_t bytes;
};

Piece piece_at(const BlockCopyArgs& args, std::size_t pieces_per_block, std::size_t i) {
  const BlockPair pair = args.pairs[i / pieces_per_block];
  const std::size_t begin = i % pieces_per_block * kPieceBytes;
  return {args.source + pair.source * args.source_stride + begin,
          args.destination + pair.destination * args.destination_stride + begin,
          std::min(kPieceBytes, args.bytes - begin)};
}

void copy_piece(const Piece& piece, const Piece& next, CopyWay way) {
  // Streaming stores need whole, aligned vectors.
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(piece.destination) % 64 == 0;
  const std::size_t streamed =
      is_aligned && piece.bytes >= kStreamBytes ? piece.bytes / 64 * 64 : 0;
  const bool goes_on = way == CopyWay::one_run && next.source == piece.source + piece.bytes;
  const bool prefetches = !goes_on && next.bytes >= piece.bytes;
  if (streamed > 0)
    stream_copy(piece.source, piece.destination, streamed, prefetches ? next.source : nullptr, way);
  std::memcpy(piece.destination + streamed, piece.source + streamed, piece.bytes - streamed);
}

}  // namespace

void block_copy_cpu(const BlockCopyArgs& args) {
  const std::size_t pieces_per_block = (args.bytes + kPieceBytes - 1) / kPieceBytes;
  const std::size_t pieces = args.pairs_count * pieces_per_block;
  const CopyWay way = args.bytes >= kStreamBytes ? copy_way().way : CopyWay::one_run;
#pragma omp parallel if (args.pairs_count * args.bytes > kSerialBytes)
  {
#pragma omp for schedule(static) nowait
    for (std::size_t i = 0; i < pieces; ++i)
      copy_piece(piece_at(args, pieces_per_block, i),
                 piece_at(args, pieces_per_block, std::min(i + 1, pieces - 1)), way);
    end_streams();
  }
}

}  // namespace kvhive
