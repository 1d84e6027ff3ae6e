#include "paged_arena.hpp"

#include <algorithm>

namespace kvhive::testing_support {

float usual_scale(Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return 0.0155f;
    case Dtype::e4m3: return 0.0044f;
    case Dtype::e5m2: return 0.0000345f;
    default: return 1.0f;
  }
}

PagedArena::PagedArena(const Shape& shape, std::int64_t blocks) : scaling_(shape.scaling) {
  const std::int64_t G = shape.G, S = shape.S;
  const std::int64_t row = shape.D * static_cast<std::int64_t>(bytes_of(shape.dtype));
  const bool is_nhd = shape.storage == Storage::nhd;
  kv_.G = shape.G;
  kv_.S = shape.S;
  kv_.D = shape.D;
  kv_.dtype = shape.dtype;
  kv_.layout = shape.storage == Storage::packed ? PageLayout::packed : PageLayout::rows;
  kv_.token_stride = is_nhd ? G * row + shape.gap : row;
  kv_.head_stride = is_nhd ? row : S * row + shape.gap;
  values_at_ = is_nhd ? S * kv_.token_stride : G * kv_.head_stride;
  scales_at_ = (2 * values_at_ + shape.gap + 15) / 16 * 16;
  const std::int64_t scales_bytes = scaling_ == Scaling::token ? 2 * G * S * 4 + 16 : 0;
  kv_.block_stride = scales_bytes > 0 ? scales_at_ + scales_bytes : 2 * values_at_ + shape.gap;

  bytes_.assign(static_cast<std::size_t>(blocks * kv_.block_stride),
                shape.dtype == Dtype::int8 ? std::byte{0x80} : std::byte{0xff});
  for (std::int64_t b = 0; b < blocks; ++b)
    std::fill_n(bytes_.begin() + b * kv_.block_stride + scales_at_, scales_bytes, std::byte{0xff});
  for (const float plane : {1.0f, 0.75f})
    for (std::int32_t g = 0; g < shape.G; ++g)
      fixed_scales_.push_back(scaling_ == Scaling::tensor ? usual_scale(shape.dtype) * plane
                              : scaling_ == Scaling::head
                                  ? usual_scale(shape.dtype) * plane *
                                        (1.0f + 0.25f * static_cast<float>(g))
                                  : 1.0f);
}

PagedKv PagedArena::kv() {
  PagedKv view = kv_;
  view.k = bytes_.data();
  view.v = bytes_.data() + values_at_;
  KvScales& scales = view.scales;
  if (scaling_ == Scaling::token) {
    const bool is_nhd = view.token_stride > view.head_stride;
    scales.k = reinterpret_cast<float*>(bytes_.data() + scales_at_);
    scales.v = scales.k + view.G * view.S;
    scales.block_stride = view.block_stride;
    scales.head_stride = is_nhd ? 4 : view.S * 4;
    scales.token_stride = is_nhd ? view.G * 4 : 4;
  } else if (scaling_ != Scaling::none) {
    scales.k = fixed_scales_.data();
    scales.v = fixed_scales_.data() + view.G;
    scales.head_stride = scaling_ == Scaling::head ? 4 : 0;
  }
  return view;
}

}  // namespace kvhive::testing_support
