#pragma once
// Computes an AttentionPlan with all threads (OpenMP). Private to the CPU kernels.

#include <cstddef>

#include "kernels/cpu/attention_plan.hpp"
#include "kernels/cpu/attention_state.hpp"

namespace kvhive {

/// attend(tile, item, scratch, stored) for every item, then merge(tile, scratch, stored) for every
/// split tile.
template <class Attend, class Merge>
void run_plan(const AttentionPlan& plan, const ScratchSize& size, const Attend& attend,
              const Merge& merge) {
  const AlignedArray<float> memory = allocate_aligned<float>(
      static_cast<std::size_t>(plan.stored_states) * SoftmaxStates::stride(size.value_size));
  const SoftmaxStates stored{memory.get(), size.value_size};

#pragma omp parallel if (plan.items.size() > 1)
  {
    AttentionScratch scratch(size);
#pragma omp for schedule(dynamic, 1) nowait
    for (const TileSpans& item : plan.items) attend(plan.tiles[item.tile], item, scratch, stored);
    if (!plan.split_tiles.empty()) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
      for (const std::size_t tile : plan.split_tiles) merge(plan.tiles[tile], scratch, stored);
    }
  }
}

}  // namespace kvhive
