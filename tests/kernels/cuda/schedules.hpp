#pragma once
// Every schedule of the emulator that a correct kernel must not notice.

#include <tuple>
#include <vector>

#include "tests/simt/launch.hpp"

namespace kvhive::testing_support {

/// run() once per schedule. Expects nothing itself.
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

}  // namespace kvhive::testing_support
