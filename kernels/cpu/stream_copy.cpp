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

void stream_bytes(const std::byte* source, std::byte* destination, std::size_t bytes,
                  const std::byte* next) {
  constexpr std::size_t kLine = 64;
  const hn::ScalableTag<std::uint8_t> d;
  const auto* from = reinterpret_cast<const std::uint8_t*>(source);
  auto* to = reinterpret_cast<std::uint8_t*>(destination);
  for (std::size_t line = 0; line < bytes; line += kLine) {
    if (next != nullptr) hwy::Prefetch(next + line);
    for (std::size_t i = line; i < line + kLine; i += hn::Lanes(d))
      hn::Stream(hn::LoadU(d, from + i), d, to + i);
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
                 const std::byte* next) {
  HWY_DYNAMIC_DISPATCH(stream_bytes)(source, destination, bytes, next);
}

void end_streams() { hwy::FlushStream(); }

}  // namespace kvhive
#endif  // HWY_ONCE
