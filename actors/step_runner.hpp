#pragma once
// Interface for the work that an executor does in one step. It is implemented by a transformer on
// the CPU or on a GPU, and in tests by a program that computes the expected tokens.

#include "actors/messages.hpp"
#include "base/expected.hpp"

namespace kvhive {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Makes the plan's copies within the device and computes its work. Returns when all results are
  /// written, also on the device.
  ///
  /// \return  the sampled tokens, and the prompts' scores. After an error (Errc::device_lost)
  /// nothing of the step may be
  ///          published
  [[nodiscard]] virtual Expected<StepResults> run(const StepPlan& plan) = 0;
};

}  // namespace kvhive
