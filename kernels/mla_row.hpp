#pragma once
// Reads and writes the bytes of one latent row (MlaRow). Slow and obvious: for references and
// tests.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/element.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {

inline constexpr std::int32_t kMlaScaleGroup = 128;  ///< elements of an fp8 row that share a scale
inline constexpr std::size_t kMlaScalesAt = kMlaLatent;
inline constexpr std::size_t kMlaRopeAt =
    kMlaScalesAt + kMlaLatent / kMlaScaleGroup * sizeof(float);
static_assert(kMlaRopeAt + 2 * kMlaRope == bytes_of(MlaRow::fp8));
static_assert(2 * kMlaRow == bytes_of(MlaRow::bf16));

/// Bytes from kv.base to the row of (block, slot).
inline std::int64_t latent_offset(const PagedLatents& kv, std::int64_t block, std::int64_t slot) {
  return block * kv.block_stride + slot * kv.token_stride;
}

/// Element d of a row.
inline float load_latent(const std::byte* row, MlaRow kind, std::size_t d) {
  if (kind == MlaRow::bf16) return load_element(row, d, Dtype::bf16);
  if (d >= kMlaLatent) return load_element(row + kMlaRopeAt, d - kMlaLatent, Dtype::bf16);
  const float scale = load_element(row + kMlaScalesAt, d / kMlaScaleGroup, Dtype::f32);
  return load_element(row, d, Dtype::e4m3) * scale;
}

/// The scale of a group of elements whose largest magnitude is amax.
inline float latent_scale(float amax) {
  const float scale = amax / largest_of(Dtype::e4m3);
  return scale > 0 ? scale : 1.0f;
}

}  // namespace kvhive
