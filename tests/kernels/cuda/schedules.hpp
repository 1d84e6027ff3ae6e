#pragma once
// The emulator's schedules, none of which may change a result. A GPU cannot be told its schedule.

#include <tuple>
#include <vector>

#if defined(KVHIVE_GPU_TESTS)
#include <cuda_runtime.h>

#include "base/check.hpp"
#else
#include "kernels/simt/launch.hpp"
#endif

namespace kvhive::testing_support {

#if defined(KVHIVE_GPU_TESTS)
template <class Run>
void in_every_schedule(Run run) {
  for (int again = 0; again < 3; ++again) run();
}

/// Waits until all kernels that were started are done.
inline void finish_kernels() {
  const cudaError_t error = cudaDeviceSynchronize();
  KV_CHECK(error == cudaSuccess, cudaGetErrorString(error));
}
#else
/// Calls run() once for each schedule; checks nothing itself.
template <class Run>
void in_every_schedule(Run run) {
  using simt::Delivery, simt::Order;
  const simt::Options before = simt::options;
  for (const auto& [order, delivery, workers] : {std::tuple{Order::forward, Delivery::late, 1u},
                                                 {Order::reverse, Delivery::early, 1u},
                                                 {Order::random, Delivery::random, 2u}}) {
    simt::options = {.order = order, .delivery = delivery, .seed = 3, .workers = workers};
    run();
  }
  simt::options = before;
}

inline void finish_kernels() {}
#endif

}  // namespace kvhive::testing_support
