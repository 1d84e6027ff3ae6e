#pragma once
// Moves blocks between the tiers. Plain C++; the actor around it is a shell on a thread of its own.

#include "actors/messages.hpp"
#include "pool/pool_memory.hpp"

namespace kvhive {

class SwapperState {
 public:
  explicit SwapperState(const PoolMemory& memory) : memory_(memory) {}

  /// Makes the plan's swaps; when it returns, the bytes are where the plan's work expects them. Out
  /// first: a block may leave, change its domain and be filled anew in one step.
  void move(const StepPlan& plan) const;

 private:
  const PoolMemory& memory_;
};

}  // namespace kvhive
