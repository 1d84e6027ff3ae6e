#include "kernels/cache_write.hpp"

#include <bit>
#include <cstddef>
#include <cstring>

#include "config/check.hpp"

namespace kvhive {
namespace {

/// Below this, waking other threads costs more than they save.
constexpr std::int64_t kSerialElements = 1 << 14;

// Plain loops over config/dtype.hpp's conversions: the compiler vectorises them, and the rounding
// is the reference's by construction.
template <class Bits, Bits (*kRound)(float)>
void write_row(const float* values, std::int32_t count, std::byte* row) {
  for (std::int32_t d = 0; d < count; ++d) {
    const Bits bits = kRound(values[d]);
    std::memcpy(row + d * sizeof bits, &bits, sizeof bits);
  }
}

template <class Bits, Bits (*kRound)(float)>
void write_tokens(const CacheWriteArgs& args) {
  const PagedKv& kv = args.kv;
  const std::int64_t token_elements = std::int64_t{kv.G} * kv.D;
#pragma omp parallel for schedule(static) if (args.T * token_elements > kSerialElements)
  for (std::int32_t t = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id < 0) continue;
    const std::int64_t token = slot_id / kv.S * kv.block_stride + slot_id % kv.S * kv.token_stride;
    for (std::int32_t g = 0; g < kv.G; ++g) {
      const std::int64_t from = t * token_elements + std::int64_t{g} * kv.D;
      const std::int64_t to = token + g * kv.head_stride;
      write_row<Bits, kRound>(static_cast<const float*>(args.k) + from, kv.D, kv.k + to);
      write_row<Bits, kRound>(static_cast<const float*>(args.v) + from, kv.D, kv.v + to);
    }
  }
}

std::uint32_t bits_of_float(float value) { return std::bit_cast<std::uint32_t>(value); }

}  // namespace

void cache_write_cpu(const CacheWriteArgs& args) {
  KV_CHECK(args.in_dtype == Dtype::f32 && bytes_of(args.kv.dtype) > 1 &&
               args.kv.layout == PageLayout::rows,
           int(args.in_dtype), int(args.kv.dtype), int(args.kv.layout));
  switch (args.kv.dtype) {
    case Dtype::f32: return write_tokens<std::uint32_t, bits_of_float>(args);
    case Dtype::bf16: return write_tokens<std::uint16_t, bf16_of_float>(args);
    case Dtype::f16: return write_tokens<std::uint16_t, f16_of_float>(args);
    default: KV_CHECK(false, int(args.kv.dtype));
  }
}

}  // namespace kvhive
