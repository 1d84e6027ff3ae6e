#pragma once
// Rows of elements from one type to another, with SIMD chosen at run time. The same bits as
// element.hpp's, one by one.

#include <cstddef>

#include "config/dtype.hpp"

namespace kvhive {

/// From f32, bf16 or f16.
void widen(const std::byte* from, Dtype dtype, std::size_t count, float* to);

/// Rounds from[i] / scale to any type.
void narrow(const float* from, float scale, std::size_t count, Dtype dtype, std::byte* to);

/// The largest magnitude; NaN is passed over, nothing gives 0.
float largest_magnitude(const float* values, std::size_t count);

}  // namespace kvhive
