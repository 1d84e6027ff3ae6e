#pragma once
// Included in front of every source. Turns release into relaxed: a process that publishes a block
// does not order the bytes it wrote before.

#include "tests/pool/memory_orders/standard_headers.hpp"

#define memory_order_release memory_order_relaxed
#define memory_order_acq_rel memory_order_acquire
