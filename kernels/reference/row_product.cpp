#include "kernels/row_product.hpp"

#include "kernels/element.hpp"

namespace kvhive {

void row_product_reference(const RowProductArgs& args) {
  const auto T = static_cast<std::size_t>(args.T), N = static_cast<std::size_t>(args.N),
             K = static_cast<std::size_t>(args.K);
  for (std::size_t t = 0; t < T; ++t)
    for (std::size_t n = 0; n < N; ++n) {
      double sum = args.bias == nullptr ? 0 : load_element(args.bias, n, args.out_dtype);
      for (std::size_t k = 0; k < K; ++k)
        sum += double{load_element(args.x, t * K + k, args.dtype)} *
               load_element(args.w, n * K + k, args.dtype);
      store_element(args.y, t * N + n, static_cast<float>(sum), args.out_dtype);
    }
}

}  // namespace kvhive
