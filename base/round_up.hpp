#pragma once

#include <cstddef>

namespace kvhive {

/// The next multiple of `unit`, or `bytes` itself.
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace kvhive
