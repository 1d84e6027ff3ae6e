#pragma once
// Put in front of every source: whoever finds something need not see what was written before it was
// published.

#include "tests/pool/memory_orders/standard_headers.hpp"

#define memory_order_acquire memory_order_relaxed
#define memory_order_acq_rel memory_order_release
