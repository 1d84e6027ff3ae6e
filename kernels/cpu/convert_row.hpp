#pragma once
// Converts rows of elements from one type to another, with SIMD chosen at run time. The bits are
// those of element.hpp's functions applied one by one.

#include <cstddef>

#include "config/dtype.hpp"

namespace kvhive {

/// From f32, bf16 or f16.
void widen(const std::byte* from, Dtype dtype, std::size_t count, float* to);

/// Rounds from[i] / scale to any type.
void narrow(const float* from, float scale, std::size_t count, Dtype dtype, std::byte* to);

/// The largest magnitude of the values that are not NaN; 0 if there is none.
float largest_magnitude(const float* values, std::size_t count);

}  // namespace kvhive
