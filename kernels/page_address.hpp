#pragma once
// Where an element of a page lies: defines the meaning of PageLayout and of all strides. It
// computes one offset at a time; the vector code moves whole rows and tiles, and tests compare it
// with these functions.

#include <cstdint>

#include "kernels/paged_kv.hpp"

namespace kvhive {

/// Bytes from kv.k (or kv.v) to the page of (block, head g).
inline std::int64_t page_offset(const PagedKv& kv, std::int64_t block, std::int32_t g) {
  return block * kv.block_stride + g * kv.head_stride;
}

/// Bytes from the page to its e-th element in the order of PageLayout::packed.
inline std::int64_t packed_offset(std::int64_t e, Dtype dtype) {
  if (bytes_of(dtype) != 1) return e * static_cast<std::int64_t>(bytes_of(dtype));
  return e / 64 * 64 + e % 32 / 8 * 16 + e / 32 % 2 * 8 + e % 8;
}

/// Bytes from a page of K to its element (slot s, dim d).
inline std::int64_t key_offset(const PagedKv& kv, std::int64_t s, std::int64_t d) {
  const auto element = static_cast<std::int64_t>(bytes_of(kv.dtype));
  switch (kv.layout) {
    case PageLayout::rows: return s * kv.token_stride + d * element;
    case PageLayout::packed:
      return packed_offset(
          ((d / 32 * (kv.S / 16) + s / 16) * 16 + d % 32 / 2) * 32 + s % 16 * 2 + d % 2, kv.dtype);
  }
  return 0;
}

/// Bytes from a page of V to its element (slot s, dim d).
inline std::int64_t value_offset(const PagedKv& kv, std::int64_t s, std::int64_t d) {
  const auto element = static_cast<std::int64_t>(bytes_of(kv.dtype));
  switch (kv.layout) {
    case PageLayout::rows: return s * kv.token_stride + d * element;
    case PageLayout::packed:
      return packed_offset((d / 16 * (kv.S / 2) + s / 2) * 32 + d % 16 * 2 + s % 2, kv.dtype);
  }
  return 0;
}

/// The scale of (block, head g, slot s). `scales` is KvScales::k or v, not null.
inline float* scale_at(const KvScales& at, float* scales, std::int64_t block, std::int64_t g,
                       std::int64_t s) {
  auto* base = reinterpret_cast<std::byte*>(scales);
  return reinterpret_cast<float*>(base + block * at.block_stride + g * at.head_stride +
                                  s * at.token_stride);
}

}  // namespace kvhive
