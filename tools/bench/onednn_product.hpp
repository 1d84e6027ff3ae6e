#pragma once
// oneDNN's matrix product, as a yardstick: y[rows, N] = x[rows, K] * w[N, K]^T, weights as they lie
// in the file.

#include <cstdint>
#include <memory>
#include <span>

#include "config/dtype.hpp"

namespace kvhive::bench {

class OneDnnProduct {
 public:
  /// \param dtype  of x and w; bf16 only where oneDNN has it (AVX-512)
  OneDnnProduct(std::int32_t rows, std::int32_t N, std::int32_t K, Dtype dtype);
  OneDnnProduct(OneDnnProduct&&) noexcept;
  ~OneDnnProduct();

  /// With all threads in one call.
  void run(const std::byte* x, const std::byte* w, float* y);
  /// 256 columns by at most 256 rows at a time, each by one thread.
  void run_in_slabs(const std::byte* x, const std::byte* w, float* y);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvhive::bench
