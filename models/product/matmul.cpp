#include "models/product/matmul.hpp"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/line_allocator.hpp"
#include "models/product/product_choice.hpp"

namespace kvhive {
namespace {

/// At least so many bytes of this thread's.
std::byte* at_least(LineVector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

MatmulWeights with_bytes(MatmulWeights weights, std::span<const std::byte> bytes) {
  weights.bytes = bytes;
  return weights;
}

std::int32_t parts(std::int32_t whole, std::int32_t part) { return (whole + part - 1) / part; }

}  // namespace

Matmul::Matmul(MatmulWeights weights, std::vector<std::byte> owned, std::vector<float> bias)
    : Matmul(with_bytes(weights, owned), std::move(bias)) {
  owned_ = std::move(owned);
}

Matmul::Matmul(const MatmulWeights& weights, std::vector<float> bias)
    : weights_(weights), bias_(std::move(bias)) {
  KV_CHECK(weights.bytes.size() == std::size_t(weights.N) * weights.K * bytes_of(weights.dtype));
  check();
}

Matmul::Matmul(CodedMatrix weights, Dtype values, std::vector<float> bias)
    : weights_{values, weights.N, weights.K, {}},
      coded_(std::in_place, std::move(weights), values),
      bias_(std::move(bias)) {
  KV_CHECK(coded_->matrix.bytes.size() == coded_->matrix.code_bytes(), weights_.N, weights_.K);
  check();
}

void Matmul::check() const {
  KV_CHECK(weights_.N > 0 && weights_.K > 0, weights_.N, weights_.K);
  KV_CHECK(bias_.empty() || bias_.size() == std::size_t(weights_.N), bias_.size(), weights_.N);
}

std::int32_t Matmul::checked_rows(std::span<const float> x, std::span<float> y) const {
  KV_CHECK(x.size() % weights_.K == 0, x.size(), weights_.K);
  const auto rows = static_cast<std::int32_t>(x.size() / weights_.K);
  KV_CHECK(y.size() == std::size_t(rows) * weights_.N, y.size(), rows, weights_.N);
  return rows;
}

void Matmul::apply(std::span<const float> x, std::span<float> y) const {
  const ProductShape shape{checked_rows(x, y), weights_.N, weights_.K};
  if (shape.rows == 0) return;
  CodedWay coded_way;
  if (coded_) coded_way = CodedWay::of(*coded_, shape.rows);
  const ProductKernel& kernel = coded_ ? *coded_way.kernel : product_kernel(weights_.dtype);
  const std::int64_t multiplications = (shape.rows + kernel.reading_rows) * shape.N * shape.K;
  const int most_threads = multiplications < kernel.serial_work ? 1 : omp_get_max_threads();
  const ProductBlocking blocking =
      coded_ ? coded_way.cut(*coded_, shape, most_threads) : kernel.blocking(shape, most_threads);
  const std::int32_t row_parts = parts(shape.rows, blocking.rows);
  const std::int32_t column_parts = parts(shape.N, blocking.columns);
  const std::int32_t panels = parts(shape.rows, blocking.packed_rows);
  const int threads = row_parts * column_parts == 1 ? 1 : most_threads;
  const std::int64_t row_bytes = shape.K * static_cast<std::int64_t>(bytes_of(weights_.dtype));
  ProductBlocking of_kernel = blocking;
  if (coded_) of_kernel.columns = coded_way.piece;

  thread_local LineVector<std::byte> packed_rows;
  std::byte* const packed = at_least(packed_rows, kernel.packed_bytes(shape));
#pragma omp parallel num_threads(threads)
  {
    thread_local LineVector<std::byte> scratch_lines, coded_lines;
    std::byte* const scratch = at_least(scratch_lines, kernel.scratch_bytes(shape, of_kernel));
    std::byte* const decoded =
        coded_ ? at_least(coded_lines, coded_way.scratch_bytes(*coded_, blocking)) : nullptr;
#pragma omp for schedule(static)
    for (std::int32_t panel = 0; panel < panels; ++panel)
      kernel.pack({x.data(), shape, panel * blocking.packed_rows, packed});
      // All columns of some rows one after the other: packed rows stay in the cache meanwhile.
#pragma omp for schedule(dynamic) nowait
    for (std::int32_t task = 0; task < row_parts * column_parts; ++task) {
      const std::int32_t row = task / column_parts * blocking.rows;
      const std::int32_t column = task % column_parts * blocking.columns;
      const ProductArgs args{.packed = packed,
                             .w = coded_ ? nullptr : weights_.bytes.data() + column * row_bytes,
                             .y = y.data() + std::int64_t{row} * shape.N + column,
                             .bias = bias_.empty() ? nullptr : &bias_[std::size_t(column)],
                             .shape = shape,
                             .first_row = row,
                             .rows = std::min(blocking.rows, shape.rows - row),
                             .columns = std::min(blocking.columns, shape.N - column),
                             .scratch = scratch};
      if (coded_)
        coded_way.multiply(*coded_, args, column, decoded);
      else
        kernel.multiply(args);
    }
  }
}

}  // namespace kvhive
