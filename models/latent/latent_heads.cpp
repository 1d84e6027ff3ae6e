#include "models/latent/latent_heads.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace kvhive {
namespace {

/// The transpose of a row-major matrix [rows, columns] of elements of `size` bytes.
std::vector<std::byte> transposed(std::span<const std::byte> bytes, std::size_t rows,
                                  std::size_t columns, std::size_t size) {
  std::vector<std::byte> result(bytes.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c)
      std::memcpy(&result[(c * rows + r) * size], &bytes[(r * columns + c) * size], size);
  return result;
}

/// Copies rows of `width` floats that begin `from_stride` and `to_stride` floats apart.
void copy_rows(const float* from, std::size_t from_stride, float* to, std::size_t to_stride,
               std::size_t width, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(from + row * from_stride, width, to + row * to_stride);
}

/// A product of each head: `count` rows of one head are gathered, multiplied and put back.
/// Inside a parallel loop a product is computed by the thread that calls it.
void multiply_heads(const std::vector<Matmul>& heads, std::size_t count, const float* from,
                    std::size_t from_width, std::size_t in, float* to, std::size_t to_width,
                    std::size_t out, LineVector<float>& scratch) {
  const std::size_t each = count * (in + out);
  if (const std::size_t all = each * omp_get_max_threads(); scratch.size() < all)
    scratch.resize(all);
  const std::size_t H = heads.size();
#pragma omp parallel for schedule(static)
  for (std::size_t h = 0; h < H; ++h) {
    const std::span own = std::span(scratch).subspan(omp_get_thread_num() * each, each);
    const std::span<float> x = own.first(count * in), y = own.subspan(count * in);
    copy_rows(from + h * from_width, H * from_width, x.data(), in, in, count);
    heads[h].apply(x, y);
    copy_rows(y.data(), out, to + h * to_width, H * to_width, out, count);
  }
}

}  // namespace

LatentHeads::LatentHeads(const MatmulWeights& kv_b, BytesLive live, std::int32_t heads,
                         const LatentShape& shape)
    : shape_(shape) {
  KV_CHECK(kv_b.N == heads * (shape.nope + shape.value) && kv_b.K == shape.rank, kv_b.N, kv_b.K);
  const std::size_t size = bytes_of(kv_b.dtype), row_bytes = shape.rank * size;
  auto rest = kv_b.bytes;
  const auto next = [&](std::int32_t rows) {
    const auto part = rest.first(rows * row_bytes);
    rest = rest.subspan(part.size());
    return part;
  };
  for (std::int32_t h = 0; h < heads; ++h) {
    to_latent_.emplace_back(MatmulWeights{kv_b.dtype, shape.rank, shape.nope, {}},
                            transposed(next(shape.nope), shape.nope, shape.rank, size),
                            std::vector<float>());
    const auto value = next(shape.value);
    const MatmulWeights from_latent{kv_b.dtype, shape.value, shape.rank, value};
    if (live == BytesLive::as_the_model)
      from_latent_.emplace_back(from_latent, std::vector<float>());
    else
      from_latent_.emplace_back(from_latent, std::vector(value.begin(), value.end()),
                                std::vector<float>());
  }
}

void LatentHeads::absorb(std::span<const float> q, std::span<float> rows,
                         LineVector<float>& scratch) const {
  const std::size_t H = to_latent_.size(), width = shape_.query(), row = shape_.row();
  const std::size_t count = q.size() / (H * width);
  KV_CHECK(q.size() == count * H * width && rows.size() == count * H * row, q.size(), rows.size());
  multiply_heads(to_latent_, count, q.data(), width, shape_.nope, rows.data(), row, shape_.rank,
                 scratch);
  copy_rows(q.data() + shape_.nope, width, rows.data() + shape_.rank, row, shape_.rope, count * H);
}

void LatentHeads::expand(std::span<const float> attended, std::span<float> values,
                         LineVector<float>& scratch) const {
  const std::size_t H = from_latent_.size();
  const std::size_t count = attended.size() / (H * shape_.rank);
  KV_CHECK(attended.size() == count * H * shape_.rank && values.size() == count * H * shape_.value,
           attended.size(), values.size());
  multiply_heads(from_latent_, count, attended.data(), shape_.rank, shape_.rank, values.data(),
                 shape_.value, shape_.value, scratch);
}

std::size_t LatentHeads::scratch_floats(std::size_t tokens, const LatentShape& shape) {
  return tokens * (shape.rank + std::max(shape.nope, shape.value)) * omp_get_max_threads();
}

std::size_t LatentHeads::owned_bytes() const {
  std::size_t bytes = 0;
  for (const auto* const matrices : {&to_latent_, &from_latent_})
    for (const Matmul& matrix : *matrices) bytes += matrix.owned_bytes();
  return bytes;
}

}  // namespace kvhive
