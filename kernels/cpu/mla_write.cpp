#include <array>
#include <cstddef>

#include "config/fp8.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/convert_row.hpp"
#include "kernels/mla_row.hpp"
#include "kernels/paged_mla.hpp"

namespace kvhive {
namespace {

/// Below this, waking other threads costs more than they save.
constexpr std::int32_t kSerialTokens = 32;

void write_latent(const float* latent, MlaRow kind, std::byte* row) {
  if (kind == MlaRow::bf16) return narrow(latent, 1.0f, kMlaLatent, Dtype::bf16, row);
  for (std::size_t first = 0; first < kMlaLatent; first += kMlaScaleGroup) {
    const float scale = latent_scale(largest_magnitude(latent + first, kMlaScaleGroup));
    store_element(row + kMlaScalesAt, first / kMlaScaleGroup, scale, Dtype::f32);
    narrow(latent + first, scale, kMlaScaleGroup, Dtype::e4m3, row + first);
  }
}

}  // namespace

void mla_write_cpu(const MlaWriteArgs& args) {
  check_arguments(args);
  const std::size_t element = bytes_of(args.in_dtype);
  const std::size_t rope_at =
      args.kv.row == MlaRow::fp8 ? kMlaRopeAt : kMlaLatent * bytes_of(Dtype::bf16);
#pragma omp parallel for schedule(static) if (args.T > kSerialTokens)
  for (std::int32_t t = 0; t < args.T; ++t) {
    const std::int64_t slot_id = args.slot_mapping[t];
    if (slot_id < 0) continue;
    std::byte* row =
        args.kv.base + latent_offset(args.kv, slot_id / args.kv.S, slot_id % args.kv.S);
    std::array<float, kMlaLatent> values;
    widen(static_cast<const std::byte*>(args.latent) + t * kMlaLatent * element, args.in_dtype,
          kMlaLatent, values.data());
    write_latent(values.data(), args.kv.row, row);
    widen(static_cast<const std::byte*>(args.rope) + t * kMlaRope * element, args.in_dtype,
          kMlaRope, values.data());
    narrow(values.data(), 1.0f, kMlaRope, Dtype::bf16, row + rope_at);
  }
}

}  // namespace kvhive
