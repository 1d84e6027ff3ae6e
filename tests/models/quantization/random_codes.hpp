#pragma once
// Random codes in every form that a checkpoint's matrices have.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/quantization/coded_matrix.hpp"

namespace kvhive::testing_support {

/// How codes lie, and which of them share a scale.
struct Form {
  std::string name;
  CodeKind kind = CodeKind::uint4;
  CodeOrder order = CodeOrder::rows;
  std::int32_t group = 0;  ///< 0: a scale for each row
  bool has_zeros = false;
  bool is_reordered = false;
  std::int32_t block_rows = 1;

  /// Sizes [N, K] with whole and with cut vectors, lines and groups, as far as the form has such.
  std::vector<std::pair<std::int32_t, std::int32_t>> sizes() const {
    if (is_reordered) return {{8, 32}, {24, 96}, {72, 160}};
    if (order == CodeOrder::rows) return {{1, 1}, {3, 31}, {5, 64}, {9, 130}, {72, 333}};
    return {{8, 8}, {24, 40}, {40, 64}, {136, 104}, {72, 328}};
  }
};

inline std::vector<Form> every_form() {
  using enum CodeOrder;
  constexpr auto four = CodeKind::uint4, eight = CodeKind::uint8;
  return {{"packed_4_in_32", four, rows, 32},
          {"packed_4_in_128", four, rows, 128, true},
          {"packed_4_in_6", four, rows, 6},
          {"packed_4_in_7", four, rows, 7, true},
          {"packed_4_in_rows", four, rows},
          {"packed_8_in_64", eight, rows, 64, true},
          {"int8_in_rows", CodeKind::int8, rows},
          {"int8_in_blocks", CodeKind::int8, rows, 16, true, false, 3},
          {"gptq_4_in_32", four, gptq, 32, true},
          {"gptq_4_in_rows", four, gptq},
          {"gptq_4_reordered", four, gptq, 32, true, true},
          {"gptq_8_in_64", eight, gptq, 64, true},
          {"gptq_8_reordered", eight, gptq, 32, false, true},
          {"awq_in_32", four, awq, 32, true},
          {"awq_in_128", four, awq, 128},
          {"e4m3_in_rows", CodeKind::e4m3, rows},
          {"e4m3_in_blocks", CodeKind::e4m3, rows, 12, false, false, 5}};
}

/// A matrix of random codes, scales, zeros and groups. May not be moved.
struct RandomCodes {
  RandomCodes(const Form& form, std::int32_t N, std::int32_t K, std::uint32_t seed = 1) {
    std::mt19937 random(seed);
    matrix.kind = form.kind;
    matrix.order = form.order;
    matrix.N = N;
    matrix.K = K;
    matrix.zero = form.kind == CodeKind::e4m3 ? 0 : form.kind == CodeKind::uint4 ? 8 : 128;
    matrix.grid = {form.block_rows, form.group == 0 ? K : form.group, {}};
    const std::int32_t across = matrix.grid.across(K);
    matrix.grid.scales.resize(matrix.grid.down(N) * across);
    std::lognormal_distribution<float> scale(-3, 1);
    for (float& value : matrix.grid.scales) value = scale(random);
    bytes.resize(matrix.code_bytes());
    for (std::byte& byte : bytes) {
      do byte = std::byte(random());
      while (form.kind == CodeKind::e4m3 && (byte & std::byte{0x7f}) == std::byte{0x7f});  // NaN
    }
    matrix.bytes = bytes;
    if (form.has_zeros) {
      const std::uint32_t mask = (1u << bits_of(form.kind)) - 1;
      for (std::size_t i = 0; i < matrix.grid.scales.size(); ++i)
        matrix.zeros.push_back(static_cast<std::uint8_t>(random() & mask));
    }
    if (form.is_reordered)
      for (std::int32_t k = 0; k < K; ++k)
        matrix.groups.push_back(static_cast<std::int32_t>(random() % std::uint32_t(across)));
  }
  RandomCodes(const RandomCodes&) = delete;
  RandomCodes& operator=(const RandomCodes&) = delete;

  std::vector<std::byte> bytes;
  CodedMatrix matrix;
};

}  // namespace kvhive::testing_support
