#include "kernels/row_product.hpp"

#include <vector>

#include "kernels/element.hpp"

namespace kvhive {

void row_product_reference(const RowProductArgs& args) {
  const auto T = static_cast<std::size_t>(args.T), N = static_cast<std::size_t>(args.N),
             K = static_cast<std::size_t>(args.K);
  const std::size_t x_stride = args.x_stride == 0 ? K : static_cast<std::size_t>(args.x_stride);
  const std::size_t y_stride = args.y_stride == 0 ? N : static_cast<std::size_t>(args.y_stride);
  for (std::size_t b = 0; b < static_cast<std::size_t>(args.batch); ++b) {
    const std::size_t x = b * static_cast<std::size_t>(args.x_step),
                      w = b * static_cast<std::size_t>(args.w_step),
                      y = b * static_cast<std::size_t>(args.y_step);
    for (std::size_t t = 0; t < T; ++t)
      for (std::size_t n = 0; n < N; ++n) {
        double sum = args.bias == nullptr ? 0 : load_element(args.bias, n, args.out_dtype);
        for (std::size_t k = 0; k < K; ++k)
          sum += double{load_element(args.x, x + t * x_stride + k, args.dtype)} *
                 load_element(args.w, w + n * K + k, args.dtype);
        store_element(args.y, y + t * y_stride + n, static_cast<float>(sum), args.out_dtype);
      }
  }
}

void adapter_product_reference(const AdapterProductArgs& args) {
  const auto N = static_cast<std::size_t>(args.N), K = static_cast<std::size_t>(args.K);
  const std::size_t y_stride = args.y_stride == 0 ? N : static_cast<std::size_t>(args.y_stride);
  for (std::size_t t = 0; t < static_cast<std::size_t>(args.T); ++t) {
    if (args.adapters[t] < 0) continue;
    const AdapterMatrices& of = args.matrices[args.adapters[t]];
    const auto rank = static_cast<std::size_t>(of.rank);
    std::vector<double> narrow(rank);
    for (std::size_t r = 0; r < rank; ++r)
      for (std::size_t k = 0; k < K; ++k)
        narrow[r] += double{load_element(args.x, t * K + k, args.dtype)} *
                     load_element(args.base + of.a, r * K + k, args.dtype);
    for (std::size_t n = 0; n < N && rank != 0; ++n) {
      double sum = 0;
      for (std::size_t r = 0; r < rank; ++r)
        sum += narrow[r] * load_element(args.base + of.b, n * rank + r, args.dtype);
      const std::size_t at = t * y_stride + n;
      const double y = double{load_element(args.y, at, args.out_dtype)} + of.scale * sum;
      store_element(args.y, at, static_cast<float>(y), args.out_dtype);
    }
  }
}

}  // namespace kvhive
