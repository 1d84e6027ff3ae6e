#include "kernels/block_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_copy.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Copies a multiple of 4 pages of 4 KiB past the caches. Four streams, a page apart, keep more
/// DRAM rows and prefetchers busy than one (glibc does the same, from its threshold of many MiB
/// on).
void stream_pages(const std::byte* source, std::byte* destination, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const hn::ScalableTag<std::uint8_t> d;
  const auto* from = reinterpret_cast<const std::uint8_t*>(source);
  auto* to = reinterpret_cast<std::uint8_t*>(destination);
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kReadAhead = 512;
  for (std::size_t quad = 0; quad < bytes; quad += 4 * kPage)
    for (std::size_t line = quad; line < quad + kPage; line += kLine)
      for (std::size_t page = 0; page < 4 * kPage; page += kPage) {
        hwy::Prefetch(from + line + page + kReadAhead);
        for (std::size_t i = line + page; i < line + page + kLine; i += hn::Lanes(d))
          hn::Stream(hn::LoadU(d, from + i), d, to + i);
      }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(stream_pages);

constexpr std::size_t kStreamUnit = 16 * 1024;        ///< what stream_pages copies a multiple of
constexpr std::size_t kPieceBytes = 4 * kStreamUnit;  ///< what one thread takes at a time
constexpr std::size_t kSerialBytes = 128 * 1024;      ///< below this, waking threads costs too much

void copy_piece(const std::byte* source, std::byte* destination, std::size_t bytes) {
  // Streaming stores want whole vectors.
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(destination) % 64 == 0;
  const std::size_t streamed = is_aligned ? bytes / kStreamUnit * kStreamUnit : 0;
  if (streamed > 0) HWY_DYNAMIC_DISPATCH(stream_pages)(source, destination, streamed);
  std::memcpy(destination + streamed, source + streamed, bytes - streamed);
}

}  // namespace

void block_copy_cpu(const BlockCopyArgs& args) {
  const std::size_t pieces_per_block = (args.bytes + kPieceBytes - 1) / kPieceBytes;
  const std::size_t pieces = args.pairs_count * pieces_per_block;
#pragma omp parallel for schedule(static) if (args.pairs_count * args.bytes > kSerialBytes)
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const BlockPair pair = args.pairs[piece / pieces_per_block];
    const std::size_t begin = piece % pieces_per_block * kPieceBytes;
    copy_piece(args.source + pair.source * args.source_stride + begin,
               args.destination + pair.destination * args.destination_stride + begin,
               std::min(kPieceBytes, args.bytes - begin));
  }
}

}  // namespace kvhive
#endif  // HWY_ONCE
