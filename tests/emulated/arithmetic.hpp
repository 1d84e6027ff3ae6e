#pragma once
// Runs the CPU backend by one of its arithmetics, by the hardware or emulated.

#include <ostream>
#include <string>
#include <vector>

#include "config/cpu_kernels.hpp"
#include "kernels/cpu/instructions/dot_way.hpp"

namespace kvhive::testing_support {

struct Arithmetic {
  CpuKernels kernels = CpuKernels::sse4;
  bool is_emulated = false;
  DotWay dots = DotWay::instruction;
};

void PrintTo(const Arithmetic& arithmetic, std::ostream* out);
/// Letters and digits, as a part of a test's name.
std::string name_of(const Arithmetic& arithmetic);

/// All there are: tiles and dot products also emulated, dot products also by multiplications.
std::vector<Arithmetic> all_arithmetics();
/// Whether this machine can run it.
bool runs_here(const Arithmetic& arithmetic);

/// In use as long as this lives.
class ComputedBy {
 public:
  explicit ComputedBy(const Arithmetic& arithmetic);
  ComputedBy(const ComputedBy&) = delete;
  ComputedBy& operator=(const ComputedBy&) = delete;
  ~ComputedBy();

 private:
  CpuKernels before_;
};

}  // namespace kvhive::testing_support
