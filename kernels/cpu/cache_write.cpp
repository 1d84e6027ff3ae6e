#include <cstddef>
#include <cstring>
#include <vector>

#include "config/fp8.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cache_write.hpp"
#include "kernels/cpu/convert_row.hpp"
#include "kernels/page_address.hpp"
#include "kernels/cpu/page_rows.hpp"

namespace kvhive {
namespace {

/// Below this, waking other threads costs more than they save.
constexpr std::int64_t kSerialElements = 1 << 14;

/// K or V of a call.
struct Plane {
  const std::byte* values;  ///< [T, G, D] of in_dtype
  std::byte* base;
  float* scales;
  void (*write_row)(const PagedKv&, const std::byte*, std::int32_t, std::byte*);
};

/// One thread's room for a row on its way.
struct RowBuffers {
  explicit RowBuffers(std::size_t D) : floats(D), stored(D * sizeof(float)) {}

  std::vector<float> floats;
  std::vector<std::byte> stored;  ///< as the cache holds it
};

/// Divides by the scale and rounds. The scale of a token of its own is made, and left at `scale`.
void convert(const CacheWriteArgs& args, const std::byte* from, float* scale, RowBuffers& buffers,
             std::byte* to) {
  const auto D = static_cast<std::size_t>(args.kv.D);
  if (args.in_dtype == args.kv.dtype) {
    std::memcpy(to, from, D * bytes_of(args.kv.dtype));
    return;
  }
  float* floats = buffers.floats.data();
  widen(from, args.in_dtype, D, floats);
  if (args.kv.scales.are_per_token()) {
    const float made = largest_magnitude(floats, D) / largest_of(args.kv.dtype);
    *scale = made > 0 ? made : 1.0f;
  }
  narrow(floats, scale ? *scale : 1.0f, D, args.kv.dtype, to);
}

void write_token(const CacheWriteArgs& args, const Plane& plane, std::int32_t t,
                 std::int64_t slot_id, RowBuffers& buffers) {
  const PagedKv& kv = args.kv;
  const std::int64_t block = slot_id / kv.S;
  const auto slot = static_cast<std::int32_t>(slot_id % kv.S);
  const std::size_t row_bytes = static_cast<std::size_t>(kv.D) * bytes_of(args.in_dtype);
  for (std::int32_t g = 0; g < kv.G; ++g) {
    const std::byte* from = plane.values + (static_cast<std::size_t>(t) * kv.G + g) * row_bytes;
    std::byte* page = plane.base + page_offset(kv, block, g);
    float* scale = plane.scales ? scale_at(kv.scales, plane.scales, block, g, slot) : nullptr;
    if (kv.layout == PageLayout::rows) {
      convert(args, from, scale, buffers, page + slot * kv.token_stride);
    } else {
      convert(args, from, scale, buffers, buffers.stored.data());
      plane.write_row(kv, buffers.stored.data(), slot, page);
    }
  }
}

}  // namespace

void cache_write_cpu(const CacheWriteArgs& args) {
  check_arguments(args);
  const PagedKv& kv = args.kv;
  const Plane k{static_cast<const std::byte*>(args.k), kv.k, kv.scales.k, write_key_row};
  const Plane v{static_cast<const std::byte*>(args.v), kv.v, kv.scales.v, write_value_row};
#pragma omp parallel if (std::int64_t{args.T} * kv.G * kv.D > kSerialElements)
  {
    RowBuffers buffers(static_cast<std::size_t>(kv.D));
#pragma omp for schedule(static)
    for (std::int32_t t = 0; t < args.T; ++t) {
      const std::int64_t slot_id = args.slot_mapping[t];
      if (slot_id < 0) continue;
      write_token(args, k, t, slot_id, buffers);
      write_token(args, v, t, slot_id, buffers);
    }
  }
}

}  // namespace kvhive
