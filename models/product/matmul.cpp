#include "models/product/matmul.hpp"

#include <omp.h>

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <utility>

#include "base/check.hpp"
#include "base/memory/line_allocator.hpp"
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

/// One of the products of an x. All that are computed together have one kernel.
class Matmul::Product {
 public:
  Product(const Matmul& matmul, std::span<const float> x, std::span<float> y)
      : matmul_(&matmul), y_(y.data()) {
    shape_ = {matmul.checked_rows(x, y), matmul.weights_.N, matmul.weights_.K};
    if (is_coded()) way_ = CodedWay::of(*matmul.coded_, shape_.rows);
    kernel_ = is_coded() ? way_.kernel : &product_kernel(matmul.weights_.dtype);
  }

  const ProductShape& shape() const { return shape_; }
  const ProductKernel& kernel() const { return *kernel_; }
  std::int64_t work() const { return (shape_.rows + kernel_->reading_rows) * shape_.N * shape_.K; }

  void cut(int threads) {
    blocking_ = is_coded() ? way_.cut(*matmul_->coded_, shape_, threads)
                           : kernel_->blocking(shape_, threads);
  }
  const ProductBlocking& blocking() const { return blocking_; }
  std::int32_t column_parts() const { return parts(shape_.N, blocking_.columns); }
  /// Of a thread, for the kernel and for codes.
  std::size_t scratch_bytes() const {
    ProductBlocking of_kernel = blocking_;
    if (is_coded()) of_kernel.columns = way_.piece;
    return kernel_->scratch_bytes(shape_, of_kernel);
  }
  std::size_t decoded_bytes() const {
    return is_coded() ? way_.scratch_bytes(*matmul_->coded_, blocking_) : 0;
  }

  struct Buffers {
    const std::byte* packed;
    std::byte *scratch, *decoded;
  };
  void multiply(std::int32_t row_part, std::int32_t column_part, const Buffers& buffers) const {
    const std::int32_t row = row_part * blocking_.rows, column = column_part * blocking_.columns;
    const MatmulWeights& weights = matmul_->weights_;
    const std::size_t row_bytes = std::size_t(shape_.K) * bytes_of(weights.dtype);
    const std::vector<float>& bias = matmul_->bias_;
    const ProductArgs args{
        .packed = buffers.packed,
        .w = is_coded() ? nullptr : weights.bytes.data() + std::size_t(column) * row_bytes,
        .y = y_ + std::int64_t{row} * shape_.N + column,
        .bias = bias.empty() ? nullptr : &bias[std::size_t(column)],
        .shape = shape_,
        .first_row = row,
        .rows = std::min(blocking_.rows, shape_.rows - row),
        .columns = std::min(blocking_.columns, shape_.N - column),
        .scratch = buffers.scratch};
    if (is_coded())
      way_.multiply(*matmul_->coded_, args, column, buffers.decoded);
    else
      kernel_->multiply(args);
  }

 private:
  bool is_coded() const { return matmul_->coded_.has_value(); }

  const Matmul* matmul_;
  float* y_;
  ProductShape shape_;
  CodedWay way_;
  const ProductKernel* kernel_;
  ProductBlocking blocking_;
};

void Matmul::run(std::span<const float> x, std::span<Product> products) {
  // All share packed rows: how they are packed and cut follows from the kernel, their number and K.
  const ProductKernel& kernel = products.front().kernel();
  const ProductShape& shape = products.front().shape();
  std::int64_t work = 0;
  for (const Product& product : products) work += product.work();
  const int most_threads = work < kernel.serial_work ? 1 : omp_get_max_threads();
  std::int32_t column_parts = 0;
  std::size_t scratch_bytes = 0, decoded_bytes = 0;
  for (Product& product : products) {
    KV_CHECK(product.shape().K == shape.K, product.shape().K, shape.K);
    product.cut(most_threads);
    KV_CHECK(product.blocking().rows == products.front().blocking().rows);
    column_parts += product.column_parts();
    scratch_bytes = std::max(scratch_bytes, product.scratch_bytes());
    decoded_bytes = std::max(decoded_bytes, product.decoded_bytes());
  }
  const ProductBlocking& blocking = products.front().blocking();
  const std::int32_t row_parts = parts(shape.rows, blocking.rows);
  const std::int32_t panels = parts(shape.rows, blocking.packed_rows);
  const int threads = row_parts * column_parts == 1 ? 1 : most_threads;

  thread_local LineVector<std::byte> packed_rows;
  std::byte* const packed = at_least(packed_rows, kernel.packed_bytes(shape));
#pragma omp parallel num_threads(threads)
  {
    thread_local LineVector<std::byte> scratch_lines, coded_lines;
    const Product::Buffers buffers{packed, at_least(scratch_lines, scratch_bytes),
                                   at_least(coded_lines, decoded_bytes)};
#pragma omp for schedule(static)
    for (std::int32_t panel = 0; panel < panels; ++panel)
      kernel.pack({x.data(), shape, panel * blocking.packed_rows, packed});
      // All columns of some rows one after the other: packed rows stay in the cache meanwhile.
#pragma omp for schedule(dynamic) nowait
    for (std::int32_t task = 0; task < row_parts * column_parts; ++task) {
      std::int32_t column_part = task % column_parts;
      const Product* product = products.data();
      for (; column_part >= product->column_parts(); ++product)
        column_part -= product->column_parts();
      product->multiply(task / column_parts, column_part, buffers);
    }
  }
}

void Matmul::apply(std::span<const float> x, std::span<float> y) const {
  Product product(*this, x, y);
  if (product.shape().rows > 0) run(x, {&product, 1});
}

void Matmul::apply_all(std::span<const float> x, std::span<const Output> outputs) {
  if (x.empty()) return;
  boost::container::small_vector<Product, 3> products;
  for (const Output& output : outputs) {
    Product product(*output.matrix, x, output.y);
    if (!products.empty() && &product.kernel() != &products.front().kernel()) {
      run(x, {products.data(), products.size()});
      products.clear();
    }
    products.push_back(product);
  }
  if (!products.empty()) run(x, {products.data(), products.size()});
}

}  // namespace kvhive
