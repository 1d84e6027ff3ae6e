#include "models/product/coded_product.hpp"

#include <algorithm>
#include <utility>

#include "models/product/coded_float_product.hpp"
#include "models/product/float_product.hpp"
#include "models/product/product_choice.hpp"
#include "models/quantization/coded_rows.hpp"

namespace kvhive {
namespace {

/// Values that are in the cache together: of few rows so many bytes that they stay in a small L2;
/// of many, which are multiplied with them longer, so many that packed rows do not pass too often.
constexpr std::int32_t kFewRows = 16;
constexpr std::size_t kOfFewRows = 192 << 10, kOfManyRows = 1 << 20;
constexpr std::int32_t kPiece = 16;  ///< kernels take no fewer columns at a time

std::size_t row_bytes(const CodedWeights& weights) {
  return std::size_t(weights.matrix.K) * bytes_of(weights.values);
}

std::int32_t up_to(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t ordering_part(const CodedWeights& weights, std::int32_t columns) {
  constexpr std::size_t kLine = 64;
  return (ordering_bytes(weights.matrix, columns) + kLine - 1) / kLine * kLine;
}

}  // namespace

CodedWeights::CodedWeights(CodedMatrix codes, Dtype values_dtype)
    : matrix(std::move(codes)),
      values(values_dtype),
      fits_registers(takes_coded_float_rows(matrix)) {}

CodedWay CodedWay::of(const CodedWeights& weights, std::int32_t rows) {
  const bool is_in_registers = weights.fits_registers && rows <= most_coded_float_rows() &&
                               has_bits_of_floats(weights.values);
  return {is_in_registers ? &float_product(weights.values) : &product_kernel(weights.values),
          is_in_registers};
}

ProductBlocking CodedWay::cut(const CodedWeights& weights, const ProductShape& shape, int threads) {
  constexpr std::int32_t kTasksPerThread = 4;
  ProductBlocking blocking = kernel->blocking(shape, threads);
  std::int32_t together = rows_side_by_side(weights.matrix);
  while (together > kPiece && shape.N / together < kTasksPerThread * threads) together /= 2;
  const std::size_t most = shape.rows <= kFewRows ? kOfFewRows : kOfManyRows;
  const auto fitting = static_cast<std::int32_t>(most / row_bytes(weights));
  piece = std::max(std::min(fitting, blocking.columns) / kPiece * kPiece, kPiece);
  blocking.columns = up_to(std::max(blocking.columns, piece), together);
  return blocking;
}

std::size_t CodedWay::scratch_bytes(const CodedWeights& weights,
                                    const ProductBlocking& blocking) const {
  const std::size_t values = is_in_registers ? 0 : piece * row_bytes(weights);
  return ordering_part(weights, blocking.columns) + values;
}

void CodedWay::multiply(const CodedWeights& weights, const ProductArgs& task,
                        std::int32_t first_column, std::byte* scratch) const {
  OrderedCodes codes = ordered(weights.matrix, first_column, task.columns, scratch);
  if (is_in_registers)
    return multiply_coded_float_rows(weights.matrix, weights.values, codes, task, first_column);
  std::byte* const values = scratch + ordering_part(weights, task.columns);
  for (std::int32_t column = 0; column < task.columns; column += piece) {
    ProductArgs part = task;
    part.w = values;
    part.columns = std::min(piece, task.columns - column);
    part.y += column;
    if (part.bias != nullptr) part.bias += column;
    decode(weights.matrix, codes, first_column + column, part.columns, weights.values, values);
    kernel->multiply(part);
    codes.first += codes.pitch * part.columns;
  }
}

}  // namespace kvhive
