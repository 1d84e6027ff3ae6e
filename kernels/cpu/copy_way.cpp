#include "kernels/copy_way.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/stop_watch.hpp"
#include "kernels/cpu/packed/packed_write.hpp"
#include "kernels/cpu/stream_copy.hpp"
#include "kernels/paged_attention.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kPieceBytes = 32 << 10;  ///< K (or V) of kTokens tokens
constexpr std::size_t kPieces = 32;            ///< one pass moves so many, in about 0.1 ms
constexpr std::size_t kPassBytes = kPieces * kPieceBytes;
constexpr std::size_t kParts = 5;  ///< an odd number, so that each way uses every part of memory
constexpr int kRounds = 8;
constexpr std::int32_t kHeads = 8;
constexpr std::int32_t kHeadSize = 128;
constexpr std::int32_t kTokens = 16;
static_assert(kTokens * kHeads * kHeadSize * 2 == kPieceBytes);

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], FreeMemory>;

/// The i-th piece of a pass: all of them, in an order that no prefetcher foresees.
std::size_t piece_at(std::size_t i, std::size_t factor) {
  static_assert(kPieces == 32, "odd factors permute a power of two");
  return i * factor % kPieces * kPieceBytes;
}

void copy_pass(CopyWay way, const std::byte* from, std::byte* to) {
  for (std::size_t i = 0; i < kPieces; ++i)
    stream_copy(from + piece_at(i, 27), to + piece_at(i, 37), kPieceBytes,
                from + piece_at(i + 1, 27), way);
  end_streams();
}

/// Writes K with the first half of the values and V with the second, as cache_write_cpu does.
void write_pass(WriteWay way, const std::byte* from, std::byte* to) {
  const PackedWriters& writers = native::kPackedWriters;
  constexpr std::int64_t kRowBytes = kHeadSize * 2;
  constexpr std::int64_t kPageBytes = kTokens * kRowBytes;
  for (std::size_t i = 0; i < kPieces; ++i)
    for (std::int32_t g = 0; g < kHeads; ++g) {
      const std::byte* values = from + i * kPieceBytes;
      const std::byte* next = from + (i + 1) % kPieces * kPieceBytes;
      (i < kPieces / 2 ? writers.keys : writers.values)(
          {values + g * kRowBytes, kHeads * kRowBytes, kHeadSize, next + g * kPageBytes},
          to + piece_at(i, 37) + g * kPageBytes, kTokens, Stores::streamed, way);
    }
  end_streams();
}

/// Measures both ways by turns on memory that is in no cache: each pass reads what the pass before
/// it wrote past the caches. It writes what was read four passes ago, because stores to lines that
/// are still in L2 are slow. The fastest pass counts, because disturbances only slow a pass down.
template <class Way, class Pass>
ChosenWay<Way> measure(Pass pass) {
  ChosenWay<Way> chosen;
  const Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, kParts * kPassBytes)));
  if (memory == nullptr) return chosen;
  std::fill_n(memory.get(), kPassBytes, std::byte{1});
  std::size_t part = 0;
  const auto rate_of = [&](Way way) {
    const std::size_t next = (part + 1) % kParts;
    const auto start = thread_cpu_time();
    pass(way, memory.get() + part * kPassBytes, memory.get() + next * kPassBytes);
    part = next;
    return kPassBytes / static_cast<double>((thread_cpu_time() - start).count());
  };
  for (std::size_t i = 0; i < kParts; ++i) rate_of(Way{0});  // the kernel provides the memory
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t way = 0; way < chosen.rates.size(); ++way)
      chosen.rates[way] = std::max(chosen.rates[way], rate_of(static_cast<Way>(way)));
  chosen.way = chosen.rates[1] > chosen.rates[0] ? Way{1} : Way{0};
  return chosen;
}

constexpr int kNotForced = -1;
std::atomic<int> forced_copy_way{kNotForced};
std::atomic<int> forced_write_way{kNotForced};

}  // namespace

ChosenWay<CopyWay> copy_way() {
  if (const int forced = forced_copy_way; forced != kNotForced)
    return {.way = static_cast<CopyWay>(forced)};
  static const ChosenWay<CopyWay> measured = measure<CopyWay>(copy_pass);
  return measured;
}

ChosenWay<WriteWay> write_way() {
  if (const int forced = forced_write_way; forced != kNotForced)
    return {.way = static_cast<WriteWay>(forced)};
  static const ChosenWay<WriteWay> measured =
      fastest_page_layout(kTokens, kHeadSize, Dtype::bf16) == PageLayout::packed
          ? measure<WriteWay>(write_pass)
          : ChosenWay<WriteWay>();
  return measured;
}

void force_copy_way(std::optional<CopyWay> way) {
  forced_copy_way = way ? static_cast<int>(*way) : kNotForced;
}

void force_write_way(std::optional<WriteWay> way) {
  forced_write_way = way ? static_cast<int>(*way) : kNotForced;
}

}  // namespace kvhive
