#pragma once
// What moves blocks between the tiers, behind an interface: within the machine's memory, or to and
// from a GPU's.

#include "actors/messages.hpp"

namespace kvhive {

class Swapper {
 public:
  virtual ~Swapper() = default;

  /// Makes the plan's swaps, out first: a block may leave and be filled anew in one step. When it
  /// returns they are done, or under way where the plan's runner waits for them.
  /// \return  seconds that the copies took, 0 = not measured this time; Errc::device_lost and the
  ///          like: nothing of the step may be published
  virtual Expected<double> move(const StepPlan& plan) = 0;
};

}  // namespace kvhive
