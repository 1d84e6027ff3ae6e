// Rows of codes and the values that they stand for, by vectors as CodedMatrix::value() says them.

#include "models/quantization/coded_rows.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "config/fp8.hpp"
#include "tests/models/quantization/random_codes.hpp"

namespace kvhive {
namespace {

using testing_support::every_form, testing_support::Form, testing_support::RandomCodes;

class CodedForm : public testing::TestWithParam<Form> {
 protected:
  /// What is to be at a place of the values.
  std::vector<std::byte> expected(const CodedMatrix& matrix, Dtype to) {
    std::vector<std::byte> values;
    for (std::int32_t row = 0; row < matrix.N; ++row)
      for (std::int32_t column = 0; column < matrix.K; ++column) {
        const float wide = matrix.value(row, column);
        const std::uint16_t narrow = bf16_of_float(wide);
        const auto* const from = to == Dtype::bf16 ? reinterpret_cast<const std::byte*>(&narrow)
                                                   : reinterpret_cast<const std::byte*>(&wide);
        values.insert(values.end(), from, from + bytes_of(to));
      }
    return values;
  }
};

TEST_P(CodedForm, IsDecodedAsItsValuesSay) {
  for (const auto& [N, K] : GetParam().sizes()) {
    const RandomCodes codes(GetParam(), N, K);
    for (const Dtype to : {Dtype::bf16, Dtype::f32})
      ASSERT_EQ(values_of(codes.matrix, to), expected(codes.matrix, to)) << N << " x " << K;
  }
}

/// Any rows, of a file that begins at any byte.
TEST_P(CodedForm, AnyRowsAreDecodedAlone) {
  const auto [N, K] = GetParam().sizes().back();
  RandomCodes codes(GetParam(), N, K);
  const auto all = values_of(codes.matrix, Dtype::bf16);
  const std::size_t row_bytes = std::size_t(K) * 2;
  std::vector<std::byte> shifted(codes.bytes.size() + 1);
  std::memcpy(&shifted[1], codes.bytes.data(), codes.bytes.size());
  codes.matrix.bytes = std::span(shifted).subspan(1);
  for (const std::int32_t first : {0, 8, 40})
    for (const std::int32_t rows : {8, 24}) {
      std::vector<std::byte> room(ordering_bytes(codes.matrix, rows)), values(rows * row_bytes);
      const OrderedCodes in_order = ordered(codes.matrix, first, rows, room.data());
      decode(codes.matrix, in_order, first, rows, Dtype::bf16, values.data());
      ASSERT_EQ(std::memcmp(values.data(), &all[first * row_bytes], values.size()), 0)
          << rows << " rows from " << first;
    }
}

INSTANTIATE_TEST_SUITE_P(Forms, CodedForm, testing::ValuesIn(every_form()),
                         [](const auto& test) { return test.param.name; });

// Said once more without CodedMatrix::value(): what the sources of the orders pack.
TEST(CodedMatrix, GptqsWordsHaveARowsNextColumns) {
  // One word for columns 0 to 7 of three rows; the first row has the codes 0 to 7.
  const std::uint32_t words[3] = {0x76543210, 0x88888888, 0xfedcba98};
  CodedMatrix matrix{.kind = CodeKind::uint4,
                     .order = CodeOrder::gptq,
                     .N = 3,
                     .K = 8,
                     .bytes = std::as_bytes(std::span(words)),
                     .grid = {1, 4, {1, 2, 1, 1, 10, 100}},
                     .zero = 8};
  EXPECT_EQ(matrix.value(0, 0), -8);
  EXPECT_EQ(matrix.value(0, 5), -6);  // (5 - 8) * 2
  EXPECT_EQ(matrix.value(1, 3), 0);
  EXPECT_EQ(matrix.value(2, 3), 30);
  EXPECT_EQ(matrix.value(2, 7), 700);
  matrix.zeros = {0, 0, 0, 0, 15, 0};
  EXPECT_EQ(matrix.value(2, 0), -70);
  matrix.groups = {1, 0, 1, 0, 1, 0, 1, 0};
  EXPECT_EQ(matrix.value(2, 0), 800);
  EXPECT_EQ(matrix.value(2, 1), -60);
}

TEST(CodedMatrix, AwqsWordsHaveAColumnOfEightRowsInAnOrderOfTheirOwn) {
  // AutoAWQ puts rows 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on.
  const std::uint32_t words[2] = {0x76543210, 0x00000000};
  const CodedMatrix matrix{.kind = CodeKind::uint4,
                           .order = CodeOrder::awq,
                           .N = 8,
                           .K = 2,
                           .bytes = std::as_bytes(std::span(words)),
                           .grid = {1, 2, std::vector<float>(8, 1.0f)}};
  const float expected[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (std::int32_t row = 0; row < 8; ++row) EXPECT_EQ(matrix.value(row, 0), expected[row]);
}

TEST(CodedMatrix, RowsOfBytesCountFromTheLeast) {
  const std::uint8_t bytes[4] = {0x80, 0xff, 0x00, 0x7f};  // -128, -1, 0, 127
  CodedMatrix matrix{.kind = CodeKind::int8,
                     .N = 1,
                     .K = 4,
                     .bytes = std::as_bytes(std::span(bytes)),
                     .grid = {1, 4, {2}},
                     .zero = 128};
  for (const auto& [column, value] : {std::pair{0, -256.0f}, {1, -2.0f}, {2, 0.0f}, {3, 254.0f}})
    EXPECT_EQ(matrix.value(0, column), value);
  matrix.kind = CodeKind::uint8;  // as pack-quantized stores them
  for (const auto& [column, value] : {std::pair{0, 0.0f}, {1, 254.0f}, {2, -256.0f}, {3, -2.0f}})
    EXPECT_EQ(matrix.value(0, column), value);
}

TEST(CodedMatrix, Fp8IsTheCodesFloatTimesTheScaleOfItsBlock) {
  std::vector<std::byte> bytes;
  for (std::int32_t i = 0; i < 35; ++i) bytes.push_back(std::byte(i * 7 % 256));
  const CodedMatrix matrix{
      .N = 5, .K = 7, .bytes = bytes, .grid = {2, 4, {1, 2, 3, 4, 0.5f, 0.25f}}};
  for (std::int32_t row = 0; row < 5; ++row)
    for (std::int32_t column = 0; column < 7; ++column)
      EXPECT_EQ(matrix.value(row, column), float_of_e4m3(std::uint8_t(bytes[row * 7 + column])) *
                                               matrix.grid.scales[row / 2 * 2 + column / 4]);
}

}  // namespace
}  // namespace kvhive
