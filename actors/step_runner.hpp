#pragma once
// Interface for what an executor does in one step: a transformer on the CPU or a GPU, or an oracle
// in tests.

#include <vector>

#include "actors/messages.hpp"
#include "base/expected.hpp"

namespace kvhive {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// Runs the plan's copies within the device and its work. Returns when all results are written,
  /// on the device, too. \return  the sampled tokens. On an error (Errc::device_lost), nothing of
  /// the step may be published
  [[nodiscard]] virtual Expected<std::vector<SampledToken>> run(const StepPlan& plan) = 0;
};

}  // namespace kvhive
