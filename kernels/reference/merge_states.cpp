#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/arguments.hpp"
#include "kernels/element.hpp"
#include "kernels/merge_states.hpp"

namespace kvhive {

void merge_states_reference(const MergeStatesArgs& args) {
  check_arguments(args);
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  for (std::size_t row = 0; row < std::size_t(args.T) * args.H; ++row) {
    const double a_lse = args.a_lse[row], b_lse = args.b_lse[row];
    const double max = std::max(a_lse, b_lse);
    const double a_weight = a_lse == kNothing ? 0 : std::exp(a_lse - max);
    const double b_weight = b_lse == kNothing ? 0 : std::exp(b_lse - max);
    const double sum = a_weight + b_weight;
    for (std::size_t i = row * args.D; i < (row + 1) * args.D; ++i) {
      double value = 0;  // a part that has seen no token may hold anything, NaN too
      if (a_weight > 0) value += a_weight / sum * load_element(args.a, i, args.dtype);
      if (b_weight > 0) value += b_weight / sum * load_element(args.b, i, args.dtype);
      store_element(args.out, i, static_cast<float>(value), args.dtype);
    }
    if (args.lse) args.lse[row] = static_cast<float>(sum > 0 ? max + std::log(sum) : kNothing);
  }
}

}  // namespace kvhive
