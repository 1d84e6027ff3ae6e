#pragma once
// What eviction policies would find in recorded traffic, those too that the pool does not have: a
// list of blocks without anything else, one request after the other. docs/POLICIES.md is made with
// it, and the pool's own policies are compared with it, hit by hit.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/replay/trace.hpp"

namespace kvhive {

/// Which idle block goes first.
enum class SimulatedPolicy : std::uint8_t {
  lru,              ///< the least recently released
  second_chance,    ///< the same, but one that was hit goes to the end of the order once
  two_lists,        ///< as lru, but one that was used again is held as younger by a pool's blocks
  lfu,              ///< the least often used; of these the least recently released
  departed_first,   ///< as lru, but first those that only a session has used that has ended
  departed_second,  ///< departed_first, with second chances for the others
  optimum,          ///< the one that is used again last; needs to know the future
};
constexpr std::array<std::string_view, 7> names_of(SimulatedPolicy) {
  return {"lru",
          "second chance",
          "two lists",
          "lfu",
          "departed first",
          "departed, second chance",
          "offline optimum"};
}

/// The number of blocks that each request finds.
///
/// \param block_tokens  that a content id of the trace stands for
/// \param blocks        usable blocks of the pool
[[nodiscard]] std::vector<std::uint32_t> simulate(const std::vector<TraceRequest>& trace,
                                                  std::uint32_t block_tokens, std::uint32_t blocks,
                                                  SimulatedPolicy policy);

}  // namespace kvhive
