#pragma once
// Interface for copying blocks between the tiers. Both tiers are in the host's memory, or the
// device tier is in a GPU's memory.

#include "actors/messages.hpp"

namespace kvhive {

class Swapper {
 public:
  virtual ~Swapper() = default;

  /// Makes the plan's copies between the tiers. Copies to the host come first, because one step may
  /// copy a block out and then fill it again. When move() returns, the copies are done, or they are
  /// under way and the plan's runner waits for them.
  ///
  /// \return  seconds that the copies took; 0 = not measured. After an error (Errc::device_lost)
  ///          nothing of the step may be published
  [[nodiscard]] virtual Expected<double> move(const StepPlan& plan) = 0;
};

}  // namespace kvhive
