#pragma once
// Included in front of every source. Turns acquire into relaxed: a process that finds a published
// block need not see the bytes that were written before.

#include "tests/pool/memory_orders/standard_headers.hpp"

#define memory_order_acquire memory_order_relaxed
#define memory_order_acq_rel memory_order_release
