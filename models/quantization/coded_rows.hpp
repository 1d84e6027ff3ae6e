#pragma once
// Some rows of a coded matrix at a time: put in order, and turned into values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/quantization/coded_matrix.hpp"

namespace kvhive {

/// So many rows next to each other, from a multiple of so many on, are put in order at the least
/// cost: their codes share lines of the file. A multiple of 8.
std::int32_t rows_side_by_side(const CodedMatrix& matrix);

/// Codes of some rows in CodeOrder::rows.
struct OrderedCodes {
  const std::byte* first = nullptr;
  std::size_t pitch = 0;  ///< bytes from row to row
};

/// Bytes that ordered() needs for so many rows: none where they lie in order.
std::size_t ordering_bytes(const CodedMatrix& matrix, std::int32_t rows);

/// \param first  with CodeOrder::awq a multiple of 8, as `rows` is then
/// \param to     ordering_bytes() of room
/// \return       the codes in the file, or in `to`
OrderedCodes ordered(const CodedMatrix& matrix, std::int32_t first, std::int32_t rows,
                     std::byte* to);

/// Turns rows into values.
///
/// \param codes   of the rows, from `first` on
/// \param to      bf16 or f32
/// \param values  [rows, K], at an address for `to`
void decode(const CodedMatrix& matrix, OrderedCodes codes, std::int32_t first, std::int32_t rows,
            Dtype to, std::byte* values);

/// The values [N, K] of a whole matrix.
/// \param to  bf16 or f32
std::vector<std::byte> values_of(const CodedMatrix& matrix, Dtype to);

}  // namespace kvhive
