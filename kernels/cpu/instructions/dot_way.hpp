#pragma once
// How this process computes dot products of bf16 (dots.hpp). Both ways have the same bits. Which
// one is faster depends on the CPU, so each process measures them once.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/choices.hpp"

namespace kvhive {

enum class DotWay : std::uint8_t {
  instruction,      ///< VDPBF16PS
  multiplications,  ///< two, of floats
};
constexpr std::array<std::string_view, 2> names_of(DotWay) {
  return {"instruction", "multiplications"};
}

/// The way that this process uses, and how many dot products of 16 pairs each does in a nanosecond.
/// The first call measures: about 0.5 ms. On a CPU without the instruction nothing is measured.
/// Thread-safe.
ChosenWay<DotWay> dot_way();

/// From now on this process uses that way, for tests and benchmarks; nothing: the measured one.
void force_dot_way(std::optional<DotWay> way);

}  // namespace kvhive
