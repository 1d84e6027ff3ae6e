#include "models/quantization/coded_matrix.hpp"

#include <cstring>

#include "config/fp8.hpp"

namespace kvhive {
namespace {

constexpr std::size_t kWordBytes = 4;

std::size_t words_of_row(const CodedMatrix& matrix) {
  const std::int32_t in_word = 32 / bits_of(matrix.kind);
  return std::size_t(matrix.K - 1) / in_word + 1;
}

std::uint32_t code_at(const CodedMatrix& matrix, std::int32_t row, std::int32_t column) {
  const std::int32_t bits = bits_of(matrix.kind), in_word = 32 / bits;
  const std::uint32_t mask = (1u << bits) - 1;
  switch (matrix.order) {
    case CodeOrder::rows: {
      const std::size_t at = matrix.row_bytes() * row + std::size_t(column) * bits / 8;
      const auto byte = std::to_integer<std::uint32_t>(matrix.bytes[at]);
      return byte >> (std::size_t(column) * bits % 8) & mask;
    }
    case CodeOrder::gptq: {
      const std::size_t word = std::size_t(column / in_word) * matrix.N + row;
      return word_at(matrix.bytes.data(), word) >> (column % in_word * bits) & mask;
    }
    case CodeOrder::awq: {
      const std::size_t word = std::size_t(column) * (matrix.N / in_word) + row / in_word;
      return word_at(matrix.bytes.data(), word) >> (awq_place(row) * bits) & mask;
    }
  }
  return 0;
}

}  // namespace

std::int32_t awq_place(std::int32_t row) {
  std::int32_t place = 0;
  while (kAwqRows[place] != row % 8) ++place;
  return place;
}

std::uint32_t word_at(const std::byte* words, std::size_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, words + index * kWordBytes, sizeof word);
  return word;
}

std::size_t CodedMatrix::row_bytes() const {
  const bool is_in_words = kind == CodeKind::uint4 || kind == CodeKind::uint8;
  return is_in_words ? words_of_row(*this) * kWordBytes : std::size_t(K);
}

std::size_t CodedMatrix::code_bytes() const {
  if (order == CodeOrder::awq) return std::size_t(K) * N * bits_of(kind) / 8;
  return row_bytes() * N;
}

std::size_t CodedMatrix::owned_bytes() const {
  return grid.scales.size() * sizeof(float) + zeros.size() + groups.size() * sizeof(std::int32_t);
}

float CodedMatrix::value(std::int32_t row, std::int32_t column) const {
  const std::int32_t across = grid.across(K);
  const std::int32_t group = groups.empty() ? column / grid.block_columns : groups[column];
  const std::size_t at = std::size_t(row / grid.block_rows) * across + group;
  const std::uint32_t code = code_at(*this, row, column);
  if (kind == CodeKind::e4m3)
    return float_of_e4m3(static_cast<std::uint8_t>(code)) * grid.scales[at];
  const std::uint32_t from_zero = kind == CodeKind::int8 ? code ^ 0x80u : code;
  const std::int32_t zero_here = zeros.empty() ? zero : zeros[at];
  return static_cast<float>(static_cast<std::int32_t>(from_zero) - zero_here) * grid.scales[at];
}

}  // namespace kvhive
