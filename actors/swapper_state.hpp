#pragma once
// The swapper for an engine on the CPU: both tiers are in the host's memory.

#include "actors/swapper.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

class SwapperState final : public Swapper {
 public:
  explicit SwapperState(const PoolMemory& memory) : memory_(memory) {}

  [[nodiscard]] Expected<double> move(const StepPlan& plan) override;

 private:
  const PoolMemory& memory_;
};

}  // namespace kvhive
