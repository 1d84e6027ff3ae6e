#include "models/product/coded_product.hpp"

#include <algorithm>

#include "models/quantization/coded_rows.hpp"

namespace kvhive {
namespace {

/// Values that are in the cache together: of few rows so many bytes that they stay in a small L2;
/// of many, which are multiplied with them longer, so many that packed rows do not pass too often.
constexpr std::size_t kFewRows = 16, kOfFewRows = 192 << 10, kOfManyRows = 1 << 20;
constexpr std::int32_t kPiece = 16;  ///< kernels take no fewer columns at a time

std::size_t row_bytes(const CodedMatrix& weights, Dtype values) {
  return std::size_t(weights.K) * bytes_of(values);
}

std::int32_t up_to(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t ordering_part(const CodedMatrix& weights, const CodedCut& cut) {
  constexpr std::size_t kLine = 64;
  return (ordering_bytes(weights, cut.columns) + kLine - 1) / kLine * kLine;
}

}  // namespace

CodedCut coded_cut(const CodedMatrix& weights, Dtype values, std::int32_t rows,
                   const ProductBlocking& blocking, int threads) {
  constexpr std::int32_t kTasksPerThread = 4;
  std::int32_t together = rows_side_by_side(weights);
  while (together > kPiece && weights.N / together < kTasksPerThread * threads) together /= 2;
  const std::size_t most = std::size_t(rows) <= kFewRows ? kOfFewRows : kOfManyRows;
  const auto fitting = static_cast<std::int32_t>(most / row_bytes(weights, values));
  const std::int32_t piece = std::max(std::min(fitting, blocking.columns) / kPiece * kPiece, kPiece);
  return {up_to(std::max(blocking.columns, piece), together), piece};
}

std::size_t coded_scratch_bytes(const CodedMatrix& weights, Dtype values, const CodedCut& cut) {
  return ordering_part(weights, cut) + cut.piece * row_bytes(weights, values);
}

void multiply_coded(const CodedMatrix& weights, Dtype values, const ProductKernel& kernel,
                    const ProductArgs& task, std::int32_t first_column, const CodedCut& cut,
                    std::byte* scratch) {
  std::byte* const decoded = scratch + ordering_part(weights, cut);
  OrderedCodes codes = ordered(weights, first_column, task.columns, scratch);
  for (std::int32_t column = 0; column < task.columns; column += cut.piece) {
    ProductArgs piece = task;
    piece.w = decoded;
    piece.columns = std::min(cut.piece, task.columns - column);
    piece.y += column;
    if (piece.bias != nullptr) piece.bias += column;
    decode(weights, codes, first_column + column, piece.columns, values, decoded);
    kernel.multiply(piece);
    codes.first += codes.pitch * piece.columns;
  }
}

}  // namespace kvhive
