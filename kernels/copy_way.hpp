#pragma once
// How the CPU backend moves data that bypasses the caches. All ways write the same bytes. Which one
// is the fastest depends on the CPU, so each process measures them once.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/choices.hpp"

namespace kvhive {

/// How blocks are copied.
enum class CopyWay : std::uint8_t {
  one_run,     ///< line after line, which suits the CPU's own prefetchers
  four_pages,  ///< four pages of 4 KiB side by side; the next piece is prefetched into L2
};
constexpr std::array<std::string_view, 2> names_of(CopyWay) { return {"one_run", "four_pages"}; }

/// How bf16 is written to PageLayout::packed.
enum class WriteWay : std::uint8_t {
  by_tokens,  ///< in the order of the tokens; the next tokens are prefetched into L1
  by_lines,   ///< in the order of the page's lines; the next tokens are prefetched into L2
};
constexpr std::array<std::string_view, 2> names_of(WriteWay) { return {"by_tokens", "by_lines"}; }

/// The way that this process uses; rates in GB/s. The first call measures: about 5 ms. Thread-safe.
ChosenWay<CopyWay> copy_way();
/// The same; on a CPU without packed pages nothing is measured.
ChosenWay<WriteWay> write_way();

/// From now on this process uses that way, for tests and benchmarks; nothing: the measured one.
void force_copy_way(std::optional<CopyWay> way);
void force_write_way(std::optional<WriteWay> way);

}  // namespace kvhive
