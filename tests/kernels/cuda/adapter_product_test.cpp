// What adapters add, on the emulated GPU (or a real one: tools/gpu): compared with the reference;
// the same bits in every schedule, alone and in a batch; nothing written beside.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/guarded.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using ::testing::HasSubstr;
using testing_support::Guarded;
using testing_support::in_every_schedule;
using testing_support::random_floats;

/// Three adapters of several ranks beside a matrix [N, K], one of which has nothing for it.
class Adapters {
 public:
  Adapters(std::int32_t N, std::int32_t K, Dtype dtype)
      : N_(N), K_(K), dtype_(dtype), memory_(values(N, K), dtype) {
    std::size_t at = 0;
    for (const std::int32_t rank : kRanks) {
      AdapterMatrices of{.rank = rank, .scale = 0.5f + static_cast<float>(rank) / 4};
      of.a = at;
      at += std::size_t(rank) * K * bytes_of(dtype);
      of.b = at;
      at += std::size_t(rank) * N * bytes_of(dtype);
      matrices_.push_back(of);
    }
  }

  /// Rows of x, with the adapters of these rows, and y before.
  struct Rows {
    std::vector<float> x, y;
    std::vector<std::int32_t> adapters;
  };
  Rows random_rows(std::int32_t T) const {
    Rows rows{
        random_floats(std::size_t(T) * K_, 5), random_floats(std::size_t(T) * stride(), 6), {}};
    for (std::int32_t t = 0; t < T; ++t) rows.adapters.push_back((t * 5 + t / 3) % 4 - 1);
    return rows;
  }
  Rows one_of(const Rows& rows, std::size_t t) const {
    const auto part = [t](const std::vector<float>& of, std::size_t width) {
      const auto first = of.begin() + static_cast<std::ptrdiff_t>(t * width);
      return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(width));
    };
    return {part(rows.x, std::size_t(K_)), part(rows.y, stride()), {rows.adapters[t]}};
  }

  template <class Kernel>
  Guarded run(const Rows& rows, Dtype out, Kernel kernel) {
    Guarded x(rows.x, dtype_), y(rows.y, out);
    std::vector<float> narrow(rows.adapters.size() * kMostRank, NAN);
    kernel(AdapterProductArgs{.x = x.data(),
                              .base = memory_.data(),
                              .matrices = matrices_.data(),
                              .adapters = rows.adapters.data(),
                              .narrow = narrow.data(),
                              .y = y.data(),
                              .T = static_cast<std::int32_t>(rows.adapters.size()),
                              .N = N_,
                              .K = K_,
                              .R = kMostRank,
                              .y_stride = static_cast<std::int64_t>(stride()),
                              .dtype = dtype_,
                              .out_dtype = out});
    return y;
  }
  Guarded on_gpu(const Rows& rows, Dtype out) {
    return run(rows, out, [](const AdapterProductArgs& args) {
      const auto done = adapter_product_cuda(args, nullptr);
      ASSERT_TRUE(done) << done.error().text;
      testing_support::finish_kernels();
    });
  }

  /// Elements from one row of y to the next: the last are not the product's.
  std::size_t stride() const { return static_cast<std::size_t>(N_) + 3; }

 private:
  static constexpr std::int32_t kRanks[] = {4, 0, 13};
  static constexpr std::int32_t kMostRank = 16;

  static std::vector<float> values(std::int32_t N, std::int32_t K) {
    std::size_t count = 0;
    for (const std::int32_t rank : kRanks) count += std::size_t(rank) * (N + K);
    return random_floats(count, 7);
  }

  std::int32_t N_, K_;
  Dtype dtype_;
  Guarded memory_;
  std::vector<AdapterMatrices> matrices_;
};

constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

TEST(AdapterProductCuda, AddsToEachRowWhatItsAdapterAdds) {
  struct Shape {
    std::int32_t T, N, K;
  };
  // 300 rows: several for each block of threads.
  for (const auto& [T, N, K] : {Shape{1, 5, 4}, Shape{6, 260, 136}, Shape{300, 24, 32}})
    for (const Dtype dtype : kActivations)
      for (const Dtype out : {dtype, Dtype::f32}) {
        Adapters adapters(N, K, dtype);
        const auto rows = adapters.random_rows(T);
        const Guarded want = adapters.run(rows, out, adapter_product_reference);
        const Guarded got = adapters.on_gpu(rows, out);
        EXPECT_TRUE(got.is_tail_intact());
        const double rounding = out == Dtype::bf16 ? 0x1p-7 : out == Dtype::f16 ? 0x1p-10 : 4e-6;
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i], rounding * (std::fabs(want[i]) + 4 * std::sqrt(K)))
              << T << ", " << i;
        // Rows without an adapter, and what lies between rows, are as they were.
        const std::size_t width = adapters.stride();
        const Guarded before(rows.y, out);
        for (std::size_t t = 0; t < std::size_t(T); ++t) {
          const std::size_t kept = rows.adapters[t] % 2 == 0 ? std::size_t(N) : 0;
          EXPECT_EQ(got.slice(t * width + kept, width - kept),
                    before.slice(t * width + kept, width - kept));
        }
        for (std::size_t t = 0; t < std::size_t(T); t += 1 + t / 3)
          EXPECT_EQ(got.slice(t * width, width),
                    adapters.on_gpu(adapters.one_of(rows, t), out).slice(0, width));
        in_every_schedule([&] { EXPECT_TRUE(adapters.on_gpu(rows, out) == got); });
      }
}

TEST(AdapterProductCuda, RefusesWhatItCannotCompute) {
  const auto text = [](AdapterProductArgs args) {
    const auto done = adapter_product_cuda(args, nullptr);
    return done ? std::string() : done.error().text;
  };
  EXPECT_THAT(text({.T = 1, .N = 4, .K = 6, .R = 1}), HasSubstr("1 rows of 6 to 4"));
  EXPECT_THAT(text({.T = 1, .N = 4, .K = 8, .R = 1, .y_stride = 3}), HasSubstr("by way of 1"));
  EXPECT_THAT(text({.T = 1, .N = 4, .K = 8, .R = 1, .dtype = Dtype::int8}), HasSubstr("cache"));
  EXPECT_EQ(text({.T = 0, .N = 4, .K = 8, .R = 1}), "");
  EXPECT_EQ(text({.T = 9, .N = 4, .K = 8, .R = 0}), "");
}

}  // namespace
}  // namespace kvhive
