#include "kernels/cpu/stream_copy.hpp"

#include <cstdint>

// SSSE3 is too old to be worth its compile time.
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream_copy.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h must be included first.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvhive {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 4;

enum class Prefetch { none, to_l1, to_l2 };

/// Loads all lines before it stores the first. Where reads and writes alternate line by line, a CPU
/// that keeps four pages open is up to 10 % slower.
template <std::size_t kLines, Prefetch kPrefetch>
HWY_INLINE void stream_lines(const std::uint8_t* HWY_RESTRICT from, std::uint8_t* HWY_RESTRICT to,
                             const std::byte* next) {
  const hn::CappedTag<std::uint8_t, kLine> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr std::size_t kVectors = kLines * kLine / kLanes;
  for (std::size_t line = 0; line < kLines; ++line) {
    if constexpr (kPrefetch == Prefetch::to_l1) __builtin_prefetch(next + line * kLine, 0, 3);
    if constexpr (kPrefetch == Prefetch::to_l2) __builtin_prefetch(next + line * kLine, 0, 2);
  }
  hn::Vec<decltype(d)> vectors[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) vectors[i] = hn::LoadU(d, from + i * kLanes);
  for (std::size_t i = 0; i < kVectors; ++i) hn::Stream(vectors[i], d, to + i * kLanes);
}

template <Prefetch kPrefetch>
void stream_one_run(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes,
                    const std::byte* next) {
  for (std::size_t at = 0; at < bytes; at += kLine)
    stream_lines<1, kPrefetch>(from + at, to + at, next + at);
}

/// \param bytes a multiple of kPages * kPage
template <Prefetch kPrefetch>
void stream_four_pages(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes,
                       const std::byte* next) {
  constexpr std::size_t kLines = 4;
  for (std::size_t first = 0; first < bytes; first += kPages * kPage)
    for (std::size_t line = first; line < first + kPage; line += kLines * kLine)
      for (std::size_t at = line; at < line + kPages * kPage; at += kPage)
        stream_lines<kLines, kPrefetch>(from + at, to + at, next + at);
}

void stream_bytes(const std::byte* source, std::byte* destination, std::size_t bytes,
                  const std::byte* next, CopyWay way) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(source);
  auto* to = reinterpret_cast<std::uint8_t*>(destination);
  const std::size_t paged =
      way == CopyWay::four_pages ? bytes / (kPages * kPage) * (kPages * kPage) : 0;
  if (next == nullptr) {
    stream_four_pages<Prefetch::none>(from, to, paged, source);
    stream_one_run<Prefetch::none>(from + paged, to + paged, bytes - paged, source);
  } else {
    stream_four_pages<Prefetch::to_l2>(from, to, paged, next);
    stream_one_run<Prefetch::to_l1>(from + paged, to + paged, bytes - paged, next + paged);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvhive
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvhive {
namespace {

HWY_EXPORT(stream_bytes);

}  // namespace

void stream_copy(const std::byte* source, std::byte* destination, std::size_t bytes,
                 const std::byte* next, CopyWay way) {
  HWY_DYNAMIC_DISPATCH(stream_bytes)(source, destination, bytes, next, way);
}

void end_streams() { hwy::FlushStream(); }

}  // namespace kvhive
#endif  // HWY_ONCE
