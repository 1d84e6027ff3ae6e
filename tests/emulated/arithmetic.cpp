#include "tests/emulated/arithmetic.hpp"

#include <algorithm>

#include "kernels/cpu/instructions/cpu_features.hpp"
#include "kernels/cpu/instructions/cpu_kernels.hpp"
#include "kernels/cpu/packed/packed_spans.hpp"
#include "models/product/dot_product.hpp"
#include "models/product/tile_product.hpp"

namespace kvhive::testing_support {
namespace {

void use_functions(bool emulated) {
  use_packed_kernels(
      emulated ? PackedKernels{emulated::kPackedDots, emulated_multiplied::kPackedDots,
                               emulated::kPackedTiles}
               : PackedKernels{native::kPackedDots, multiplied::kPackedDots, native::kPackedTiles});
  use_dot_product(emulated ? emulated::kDotProduct : native::kDotProduct);
  use_tile_product(emulated ? emulated::kTileProduct : native::kTileProduct);
}

}  // namespace

std::string name_of(const Arithmetic& arithmetic) {
  std::string name(to_string(arithmetic.kernels));
  std::erase(name, '-');
  if (arithmetic.dots == DotWay::multiplications) name += "_multiplied";
  return name + (arithmetic.is_emulated ? "_emulated" : "");
}

void PrintTo(const Arithmetic& arithmetic, std::ostream* out) { *out << name_of(arithmetic); }

std::vector<Arithmetic> all_arithmetics() {
  std::vector<Arithmetic> all;
  for (const CpuKernels kernels : kAllCpuKernels) {
    all.push_back({kernels, false});
    if (kernels >= CpuKernels::avx512_bf16) all.push_back({kernels, true});
    if (kernels == CpuKernels::avx512_bf16)
      all.push_back({kernels, false, DotWay::multiplications});
  }
  return all;
}

bool runs_here(const Arithmetic& arithmetic) {
  return arithmetic.is_emulated ? cpu_features().avx2 : grants(arithmetic.kernels);
}

ComputedBy::ComputedBy(const Arithmetic& arithmetic) : before_(cpu_kernels()) {
  use_functions(arithmetic.is_emulated);
  force_dot_way(arithmetic.dots);
  use_cpu_kernels(arithmetic.kernels);
}

ComputedBy::~ComputedBy() {
  use_functions(false);
  force_dot_way({});
  use_cpu_kernels(before_);
}

}  // namespace kvhive::testing_support
