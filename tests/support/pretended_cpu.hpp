#pragma once
// Makes Highway's kernels use only one of the instruction sets that the CPU has.

#include <cstdint>
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace kvhive::testing {

class PretendedCpu {
 public:
  /// \param target  HWY_SCALAR, HWY_AVX2 ...
  explicit PretendedCpu(std::int64_t target) { choose(target); }
  PretendedCpu(const PretendedCpu&) = delete;
  PretendedCpu& operator=(const PretendedCpu&) = delete;
  ~PretendedCpu() { choose(0); }

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

}  // namespace kvhive::testing
