#pragma once
// Interface for copying blocks between the tiers: within the machine's memory, or to and from a
// GPU's.

#include "actors/messages.hpp"

namespace kvhive {

class Swapper {
 public:
  virtual ~Swapper() = default;

  /// Makes the plan's copies between the tiers, those to the host first: a block may be copied out
  /// and filled anew in one step. When it returns they are done, or under way and the plan's runner
  /// waits for them. \return  seconds that the copies took, 0 = not measured. On an error
  /// (Errc::device_lost), nothing of
  ///          the step may be published
  [[nodiscard]] virtual Expected<double> move(const StepPlan& plan) = 0;
};

}  // namespace kvhive
