#pragma once
// The work an executor does for one step, behind an interface: a transformer, or something
// countable in a test.

#include <vector>

#include "actors/messages.hpp"
#include "base/expected.hpp"

namespace kvhive {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Runs the plan's copies within the device and its work, and returns when the results are in
  /// memory, on the device too.
  /// \return  Errc::device_lost and the like: nothing of the step may be published
  virtual Expected<std::vector<SampledToken>> run(const StepPlan& plan) = 0;
};

}  // namespace kvhive
