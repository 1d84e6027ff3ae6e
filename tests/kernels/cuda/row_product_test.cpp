// The batch-invariant product on the emulated GPU (or a real one: tools/gpu).

#include "kernels/row_product.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/guarded.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::Guarded;
using testing_support::in_every_schedule;
using testing_support::random_floats;

/// The operands of a product; some rows of x can be multiplied on their own.
class Product {
 public:
  Product(std::int32_t T, std::int32_t N, std::int32_t K, Dtype dtype, Dtype out, bool has_bias)
      : T_(T),
        N_(N),
        K_(K),
        dtype_(dtype),
        out_(out),
        x_(random_floats(std::size_t(T) * K, 1), dtype),
        w_(random_floats(std::size_t(N) * K, 2), dtype),
        bias_(random_floats(has_bias ? N : 0, 3), out) {}

  /// Multiplies rows first..first+count-1.
  template <class Run>
  Guarded run(Run product, std::int32_t first, std::int32_t count) {
    Guarded y(std::size_t(count) * N_, out_);
    product({.x = x_.data() + std::size_t(first) * K_ * bytes_of(dtype_),
             .w = w_.data(),
             .bias = bias_.size() == 0 ? nullptr : bias_.data(),
             .y = y.data(),
             .T = count,
             .N = N_,
             .K = K_,
             .dtype = dtype_,
             .out_dtype = out_});
    return y;
  }
  Guarded on_gpu(std::int32_t first, std::int32_t count) {
    return run(
        [](const RowProductArgs& args) {
          const auto done = row_product_cuda(args, nullptr);
          ASSERT_TRUE(done) << done.error().text;
          testing_support::finish_kernels();
        },
        first, count);
  }
  Guarded on_gpu() { return on_gpu(0, T_); }
  Guarded reference() { return run(row_product_reference, 0, T_); }
  /// Fills row `row` of x with NaN.
  void poison(std::int32_t row) {
    const std::size_t row_bytes = std::size_t(K_) * bytes_of(dtype_);
    std::memset(x_.data() + std::size_t(row) * row_bytes, 0xff, row_bytes);
  }
  std::vector<std::byte> row(const Guarded& y, std::int32_t of) const {
    return y.slice(std::size_t(of) * N_, N_);
  }

 private:
  std::int32_t T_, N_, K_;
  Dtype dtype_, out_;
  Guarded x_, w_, bias_;
};

TEST(RowProductCuda, IsRightForAnyShape) {
  struct Shape {
    std::int32_t T, N, K;
  };
  bool has_bias = false;
  for (const auto& [T, N, K] : {Shape{1, 8, 8},
                                {1, 40, 64},
                                {5, 33, 72},
                                {16, 64, 256},
                                {17, 100, 136},
                                {33, 64, 64},
                                {64, 65, 520},
                                {70, 130, 312}})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
      for (const Dtype out : {dtype, Dtype::f32}) {
        Product product(T, N, K, dtype, out, has_bias = !has_bias);
        const Guarded want = product.reference(), got = product.on_gpu();
        EXPECT_TRUE(got.is_tail_intact());
        // Sums of f32 are added up one after the other, so their errors grow with K.
        const double rounding = out == Dtype::bf16    ? 0x1p-8
                                : out == Dtype::f16   ? 0x1p-11
                                : dtype == Dtype::f32 ? 2e-6
                                                      : 1e-6;
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i], rounding * (std::fabs(want[i]) + std::sqrt(K)))
              << T << " x " << N << " x " << K << ", element " << i;
        in_every_schedule([&] { EXPECT_TRUE(product.on_gpu() == got); });
      }
}

/// A row alone, in two tiles of decode, and at any place in prefill.
TEST(RowProductCuda, ARowsBitsDoNotDependOnOtherRows) {
  for (const std::int32_t K : {64, 136, 456})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      Product product(100, 72, K, dtype, Dtype::f32, true);
      const Guarded all = product.on_gpu();
      for (const std::int32_t row : {0, 1, 15, 31, 32, 63, 64, 99})
        EXPECT_EQ(product.row(product.on_gpu(row, 1), 0), product.row(all, row))
            << K << ", " << row;
      const Guarded some = product.on_gpu(50, 20), more = product.on_gpu(13, 80);
      for (std::int32_t row = 0; row < 20; ++row)
        EXPECT_EQ(product.row(some, row), product.row(all, 50 + row));
      for (std::int32_t row = 0; row < 80; ++row)
        EXPECT_EQ(product.row(more, row), product.row(all, 13 + row));
    }
}

TEST(RowProductCuda, RowsThatAreNotFiniteDoNotAffectOthers) {
  for (const std::int32_t T : {3, 40}) {
    Product product(T, 40, 64, Dtype::bf16, Dtype::bf16, false);
    const Guarded before = product.on_gpu();
    product.poison(1);
    const Guarded after = product.on_gpu();
    for (std::int32_t row = 0; row < T; ++row)
      EXPECT_EQ(product.row(after, row) == product.row(before, row), row != 1) << row;
  }
}

/// As the heads of latent attention are multiplied: rows of one head lie apart, every head has a
/// matrix of its own, and what is beside a head stays.
TEST(RowProductCuda, MultipliesEachHeadByAMatrixOfItsOwn) {
  constexpr std::int32_t kHeads = 3, kN = 40, kK = 24, kXWidth = 32, kYWidth = 48;
  for (const std::int32_t T : {1, 5, 70})
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      Guarded x(random_floats(std::size_t(T) * kHeads * kXWidth, 1), dtype);
      Guarded w(random_floats(std::size_t(kHeads) * kN * kK, 2), dtype);
      RowProductArgs args{.x = x.data(),
                          .w = w.data(),
                          .T = T,
                          .N = kN,
                          .K = kK,
                          .dtype = dtype,
                          .out_dtype = dtype,
                          .x_stride = kHeads * kXWidth,
                          .y_stride = kHeads * kYWidth,
                          .batch = kHeads,
                          .x_step = kXWidth,
                          .w_step = kN * kK,
                          .y_step = kYWidth};
      const auto run = [&](auto product) {
        Guarded y(std::vector<float>(std::size_t(T) * kHeads * kYWidth, 7), dtype);
        args.y = y.data();
        product(args);
        return y;
      };
      const auto on_gpu = [&] {
        return run([](const RowProductArgs& of) {
          const auto done = row_product_cuda(of, nullptr);
          ASSERT_TRUE(done) << done.error().text;
          testing_support::finish_kernels();
        });
      };
      const Guarded want = run(row_product_reference), got = on_gpu();
      EXPECT_TRUE(got.is_tail_intact());
      const double rounding = dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], rounding * (std::fabs(want[i]) + std::sqrt(kK))) << i;
      EXPECT_EQ(got[kN], 7);
      in_every_schedule([&] { EXPECT_TRUE(on_gpu() == got); });
    }
}

TEST(RowProductCuda, RefusesWhatItCannotDo) {
  std::vector<std::byte> allocated(1024);  // where a GPU can read it
  std::byte* const memory = allocated.data();
  const RowProductArgs good{
      .x = memory, .w = memory + 256, .y = memory + 512, .T = 1, .N = 2, .K = 8};
  const auto refusal = [&](auto change) {
    RowProductArgs args = good;
    change(args);
    const auto done = row_product_cuda(args, nullptr);
    testing_support::finish_kernels();
    return done ? Errc::none : done.error().code;
  };
  EXPECT_EQ(refusal([](RowProductArgs&) {}), Errc::none);
  EXPECT_EQ(refusal([](RowProductArgs& args) { args.T = 0; }), Errc::none);
  EXPECT_EQ(refusal([](RowProductArgs& args) { args.dtype = Dtype::f32; }), Errc::none);
  EXPECT_EQ(refusal([](RowProductArgs& args) { args.dtype = Dtype::int8; }), Errc::unsupported);
  EXPECT_NE(refusal([](RowProductArgs& args) { args.x_stride = 12; }), Errc::none);
  EXPECT_NE(refusal([&](RowProductArgs& args) { args.batch = 2, args.bias = memory; }), Errc::none);
  EXPECT_EQ(refusal([](RowProductArgs& args) { args.K = 12; }), Errc::unsupported);
  EXPECT_EQ(refusal([&](RowProductArgs& args) { args.x = memory + 8; }), Errc::unsupported);
  EXPECT_EQ(refusal([](RowProductArgs& args) { args.N = 0; }), Errc::unsupported);
}

}  // namespace
}  // namespace kvhive
