#include "kernels/cache_write.hpp"

#include <cstddef>
#include <cstring>

#include "config/check.hpp"

namespace kvhive {
namespace {

void store(std::byte* address, Dtype dtype, float value) {
  if (dtype == Dtype::f32) {
    std::memcpy(address, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == Dtype::bf16 ? bf16_of_float(value) : f16_of_float(value);
  std::memcpy(address, &bits, sizeof bits);
}

void write_token(const PagedKv& kv, std::byte* plane, std::int64_t slot_id, const float* values) {
  std::byte* token = plane + slot_id / kv.S * kv.block_stride + slot_id % kv.S * kv.token_stride;
  for (std::int32_t g = 0; g < kv.G; ++g)
    for (std::int32_t d = 0; d < kv.D; ++d)
      store(token + g * kv.head_stride + d * bytes_of(kv.dtype), kv.dtype, values[g * kv.D + d]);
}

}  // namespace

void cache_write_reference(const CacheWriteArgs& args) {
  KV_CHECK(args.in_dtype == Dtype::f32 && bytes_of(args.kv.dtype) > 1 &&
               args.kv.layout == PageLayout::rows,
           int(args.in_dtype), int(args.kv.dtype), int(args.kv.layout));
  const std::int64_t token_elements = std::int64_t{args.kv.G} * args.kv.D;
  for (std::int32_t t = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id < 0) continue;
    write_token(args.kv, args.kv.k, slot_id,
                static_cast<const float*>(args.k) + t * token_elements);
    write_token(args.kv, args.kv.v, slot_id,
                static_cast<const float*>(args.v) + t * token_elements);
  }
}

}  // namespace kvhive
