#include <cmath>

#include "kernels/arguments.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/element.hpp"
#include "kernels/page_address.hpp"

namespace kvhive {
namespace {

using Offset = std::int64_t (*)(const PagedKv&, std::int64_t, std::int64_t);

float scale_for(const CacheWriteArgs& args, const void* values, std::size_t first) {
  float amax = 0;
  for (std::int32_t d = 0; d < args.kv.D; ++d) {
    const float magnitude = std::fabs(load_element(values, first + d, args.in_dtype));
    if (magnitude > amax) amax = magnitude;  // unlike fmax(), ignores signalling NaNs
  }
  const float scale = amax / largest_of(args.kv.dtype);
  return scale > 0 ? scale : 1.0f;
}

/// Writes the D elements from `first` on, one head of one token, into the token's slot.
void write_head(const CacheWriteArgs& args, std::int64_t slot_id, std::int32_t g,
                const void* values, std::size_t first, std::byte* plane, Offset offset,
                float* scales) {
  const PagedKv& kv = args.kv;
  const std::int64_t block = slot_id / kv.S, slot = slot_id % kv.S;
  float* scale = scales ? scale_at(kv.scales, scales, block, g, slot) : nullptr;
  if (kv.scales.are_per_token()) *scale = scale_for(args, values, first);
  for (std::int32_t d = 0; d < kv.D; ++d) {
    const float value = load_element(values, first + d, args.in_dtype);  // exact
    store_element(plane + page_offset(kv, block, g) + offset(kv, slot, d),
                  scale ? value / *scale : value, kv.dtype);
  }
}

}  // namespace

void cache_write_reference(const CacheWriteArgs& args) {
  check_arguments(args);
  const PagedKv& kv = args.kv;
  for (std::int32_t t = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id < 0) continue;
    for (std::int32_t g = 0; g < kv.G; ++g) {
      const std::size_t first = (static_cast<std::size_t>(t) * kv.G + g) * kv.D;
      write_head(args, slot_id, g, args.k, first, kv.k, key_offset, kv.scales.k);
      write_head(args, slot_id, g, args.v, first, kv.v, value_offset, kv.scales.v);
    }
  }
}

}  // namespace kvhive
