#pragma once
// How the CPU backend moves data that bypasses the caches. All ways write the same bytes. Which one
// is the fastest depends on the CPU, so each process measures them once.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvhive {

/// How blocks are copied.
enum class CopyWay : std::uint8_t {
  one_run,     ///< line after line, which suits the CPU's own prefetchers
  four_pages,  ///< four pages of 4 KiB side by side; the next piece is prefetched into L2
};
constexpr std::array<std::string_view, 2> names_of(CopyWay) { return {"one_run", "four_pages"}; }

template <class Way>
struct ChosenWay {
  Way way{};
  /// GB/s of each way, in the order of the enum; 0 if nothing was measured.
  std::array<double, 2> rates{};
};

/// The way that this process uses. The first call measures: about 5 ms. Thread-safe.
ChosenWay<CopyWay> copy_way();

/// From now on this process uses that way, for tests and benchmarks; nothing: the measured one.
void force_copy_way(std::optional<CopyWay> way);

}  // namespace kvhive
