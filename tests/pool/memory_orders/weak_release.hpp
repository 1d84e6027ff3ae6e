#pragma once
// Put in front of every source: whoever publishes something promises nothing about what it wrote
// before.

#include "tests/pool/memory_orders/standard_headers.hpp"

#define memory_order_release memory_order_relaxed
#define memory_order_acq_rel memory_order_acquire
