// Embedding, norm, rotation and SwiGLU on the emulated GPU (or a real one: tools/gpu): compared
// with their references; the same bits in every schedule, alone and in a batch; nothing written
// beside the rows.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cuda/cuda_kernels.hpp"
#include "tests/kernels/cuda/guarded.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::Guarded;
using testing_support::in_every_schedule;
using testing_support::random_floats;

constexpr Dtype kActivations[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

/// Relative to the value: a few roundings in f32 and the last one to `dtype`.
double tolerance_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 2e-6 : dtype == Dtype::f16 ? 1.1e-3 : 8e-3;
}

void expect_near(const Guarded& got, const Guarded& want, Dtype dtype, double floor = 0.01) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_TRUE(got.is_tail_intact());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance_of(dtype) * (std::fabs(want[i]) + floor)) << i;
}

/// Expects that run() gives the same in every schedule, and returns it.
Guarded in_all_schedules(const std::function<Guarded()>& run) {
  const Guarded first = run();
  in_every_schedule([&] { EXPECT_TRUE(run() == first); });
  return first;
}

void expect_done(const Expected<void>& done) {
  ASSERT_TRUE(done) << done.error().text;
  testing_support::finish_kernels();
}

TEST(EmbedCuda, GathersRowsOfAnyTable) {
  constexpr std::int32_t kVocab = 11;
  const std::vector<std::int32_t> tokens = {10, 0, 3, 3, 7};
  for (const Dtype dtype : kActivations)
    for (const std::int32_t width : {4, 64, 1028}) {
      Guarded table(random_floats(kVocab * width, 1), dtype);
      EmbedArgs args{table.data(), tokens.data(), nullptr, std::int32_t(tokens.size()),
                     width,        dtype,         1.5f};
      Guarded want(tokens.size() * width, Dtype::f32);
      args.out = want.as<float>();
      embed_reference(args);
      const Guarded got = in_all_schedules([&] {
        Guarded out(tokens.size() * width, Dtype::f32);
        args.out = out.as<float>();
        expect_done(embed_cuda(args, nullptr));
        return out;
      });
      EXPECT_TRUE(got == want) << to_string(dtype) << ", " << width;
    }
}

struct NormCase {
  std::int32_t T, width;
  Dtype delta, out;
  bool has_delta;
  std::vector<std::int32_t> rows;  ///< empty: all
  bool has_residual = true;
  std::int32_t beside = 0;  ///< elements beside each row of delta
};

class NormFixture {
 public:
  explicit NormFixture(const NormCase& c)
      : case_(c),
        n_(c.rows.empty() ? c.T : std::int32_t(c.rows.size())),
        residual_(random_floats(std::size_t(c.T) * c.width, 1, 3), Dtype::f32),
        delta_(random_floats(std::size_t(c.T) * (c.width + c.beside), 2), c.delta),
        weight_(random_floats(c.width, 3), Dtype::f32) {}

  /// Runs rows first..first+count-1 as a batch of their own.
  template <class Run>
  std::pair<Guarded, Guarded> run(Run kernel, std::int32_t first, std::int32_t count) {
    const std::size_t width = case_.width;
    std::vector<float> values;
    const std::size_t begin = case_.rows.empty() ? first * width : 0;
    const std::size_t end = case_.rows.empty() ? begin + count * width : residual_.size();
    for (std::size_t i = begin; i < end; ++i) values.push_back(residual_[i]);
    Guarded residual(values, Dtype::f32);
    Guarded out(count * width, case_.out);
    AddRmsNormArgs args;
    if (case_.has_residual) args.residual = residual.as<float>();
    const std::size_t stride = width + case_.beside;
    if (case_.has_delta)
      args.delta = delta_.data() + begin / width * stride * bytes_of(case_.delta);
    if (case_.beside > 0) args.delta_stride = std::int64_t(stride);
    args.weight = weight_.as<float>();
    args.out = out.data();
    args.rows = case_.rows.empty() ? nullptr : case_.rows.data() + first;
    args.n = count;
    args.width = case_.width;
    args.eps = 1e-5f;
    args.delta_dtype = case_.delta;
    args.out_dtype = case_.out;
    kernel(args);
    return {std::move(out), std::move(residual)};
  }

  void check() {
    const auto reference = run(add_rms_norm_reference, 0, n_);
    const auto on_device = [](const AddRmsNormArgs& args) {
      expect_done(add_rms_norm_cuda(args, nullptr));
    };
    const auto got = run(on_device, 0, n_);
    expect_near(got.first, reference.first, case_.out);
    EXPECT_TRUE(got.second == reference.second);
    in_every_schedule([&] { EXPECT_TRUE(run(on_device, 0, n_) == got); });
    for (std::int32_t row = 0; row < n_; ++row)
      EXPECT_EQ(run(on_device, row, 1).first.slice(0, case_.width),
                got.first.slice(std::size_t(row) * case_.width, case_.width))
          << "row " << row << " alone";
  }

 private:
  NormCase case_;
  std::int32_t n_;
  Guarded residual_, delta_, weight_;
};

TEST(AddRmsNormCuda, AddsAndNormsEveryRow) {
  for (const Dtype delta : kActivations)
    for (const Dtype out : kActivations)
      for (const std::int32_t width : {4, 136, 2052})
        NormFixture({3, width, delta, out, true, {}}).check();
}

TEST(AddRmsNormCuda, NormsWithoutADelta) {
  NormFixture({3, 72, Dtype::f32, Dtype::bf16, false, {}}).check();
}

TEST(AddRmsNormCuda, TakesNamedRowsAndLeavesTheResidual) {
  NormFixture({5, 72, Dtype::f32, Dtype::bf16, true, {4, 0, 4, 2}}).check();
  NormFixture({5, 72, Dtype::bf16, Dtype::f32, false, {1}}).check();
}

TEST(AddRmsNormCuda, NormsADeltaThatIsForNoResidual) {
  for (const std::int32_t beside : {0, 64})
    NormFixture({3, 72, Dtype::bf16, Dtype::f32, true, {}, false, beside}).check();
  Guarded in_place(random_floats(3 * 72, 1), Dtype::f32), weight(random_floats(72, 2), Dtype::f32);
  Guarded apart(3 * 72, Dtype::f32);
  AddRmsNormArgs args{nullptr, in_place.data(), weight.as<float>(), apart.data(), nullptr, 3, 72};
  expect_done(add_rms_norm_cuda(args, nullptr));
  args.out = in_place.data();
  expect_done(add_rms_norm_cuda(args, nullptr));
  EXPECT_TRUE(in_place == apart);
}

struct RotateCase {
  std::int32_t H, G, D;
  Dtype dtype;
  bool has_norm;
  float factor = 1;
};

const std::vector<std::int32_t> kPositions = {0, 1, 77, 4095, 65537, 131072};

void expect_rotated(const RotateCase& c) {
  SCOPED_TRACE("H " + std::to_string(c.H) + ", D " + std::to_string(c.D) + ", " +
               std::string(to_string(c.dtype)) + (c.has_norm ? ", normed" : ""));
  const std::size_t T = kPositions.size();
  const auto q = random_floats(T * c.H * c.D, 1), k = random_floats(T * c.G * c.D, 2);
  Guarded q_norm(random_floats(c.D, 3), Dtype::f32), k_norm(random_floats(c.D, 4), Dtype::f32);
  std::vector<float> inverse(c.D / 2);
  for (std::size_t i = 0; i < inverse.size(); ++i)
    inverse[i] = static_cast<float>(std::pow(10000.0, -2.0 * double(i) / c.D));
  Guarded frequencies(inverse, Dtype::f32);

  const auto run = [&](auto rotate, std::size_t first, std::size_t count) {
    const auto rows = [&](const std::vector<float>& all, std::int32_t heads) {
      const std::size_t width = std::size_t(heads) * c.D;
      return Guarded(std::span(all).subspan(first * width, count * width), c.dtype);
    };
    Guarded q_rows = rows(q, c.H), k_rows = rows(k, c.G);
    RotateArgs args;
    args.q = q_rows.data();
    args.k = k_rows.data();
    args.positions = kPositions.data() + first;
    args.frequencies = frequencies.as<float>();
    if (c.has_norm) args.q_norm = q_norm.as<float>(), args.k_norm = k_norm.as<float>();
    args.T = std::int32_t(count);
    args.H = c.H;
    args.G = c.G;
    args.D = c.D;
    args.eps = 1e-6f;
    args.dtype = c.dtype;
    args.factor = c.factor;
    rotate(args);
    return std::pair{std::move(q_rows), std::move(k_rows)};
  };
  const auto on_device = [](const RotateArgs& args) { expect_done(rotate_cuda(args, nullptr)); };
  const auto want = run(rotate_reference, 0, T);
  const auto got = run(on_device, 0, T);
  expect_near(got.first, want.first, c.dtype, 1.0);  // two values of about 1 may cancel
  expect_near(got.second, want.second, c.dtype, 1.0);
  in_every_schedule([&] { EXPECT_TRUE(run(on_device, 0, T) == got); });
  for (std::size_t t = 0; t < T; ++t) {
    const auto alone = run(on_device, t, 1);
    const std::size_t q_width = c.H * c.D, k_width = c.G * c.D;
    EXPECT_EQ(alone.first.slice(0, q_width), got.first.slice(t * q_width, q_width));
    EXPECT_EQ(alone.second.slice(0, k_width), got.second.slice(t * k_width, k_width));
  }
}

TEST(RotateCuda, TurnsHeadsOfEverySize) {
  for (const Dtype dtype : kActivations)
    for (const std::int32_t D : {8, 64, 80, 128, 256}) expect_rotated({3, 1, D, dtype, false});
}

TEST(RotateCuda, NormsHeadsBeforeTurningThem) {
  for (const Dtype dtype : kActivations) expect_rotated({5, 2, 128, dtype, true});
  expect_rotated({1, 1, 24, Dtype::f32, true, 1.3f});
}

/// Heads of wider rows go to rows of another width, as latent attention's queries do.
TEST(RotatePairsCuda, TurnsNeighboursFromRowsToOtherRows) {
  constexpr std::int32_t kHeads = 3, kFrom = 24, kTo = 20;
  const std::size_t T = kPositions.size();
  for (const Dtype dtype : kActivations)
    for (const std::int32_t D : {8, 16}) {
      Guarded from(random_floats(T * kHeads * kFrom, 1), dtype);
      std::vector<float> inverse(D / 2);
      for (std::size_t i = 0; i < inverse.size(); ++i)
        inverse[i] = static_cast<float>(std::pow(10000.0, -2.0 * double(i) / D));
      const auto run = [&](auto rotate, std::size_t first, std::size_t count) {
        Guarded to(std::vector<float>(count * kHeads * kTo, 7), dtype);
        RotatePairsArgs args;
        args.from = from.data() + first * kHeads * kFrom * bytes_of(dtype);
        args.to = to.data();
        args.positions = kPositions.data() + first;
        args.frequencies = inverse.data();
        args.T = std::int32_t(count);
        args.H = kHeads;
        args.D = D;
        args.from_stride = kFrom;
        args.to_stride = kTo;
        args.dtype = dtype;
        args.factor = 1.25f;
        rotate(args);
        return to;
      };
      const auto on_device = [](const RotatePairsArgs& args) {
        expect_done(rotate_pairs_cuda(args, nullptr));
      };
      const Guarded want = run(rotate_pairs_reference, 0, T);
      const Guarded got = in_all_schedules([&] { return run(on_device, 0, T); });
      expect_near(got, want, dtype, 1.0);
      EXPECT_EQ(got[kTo - 1], 7);  // what is beside a head stays
      for (std::size_t t = 0; t < T; ++t)
        EXPECT_EQ(run(on_device, t, 1).slice(0, kHeads * kTo),
                  got.slice(t * kHeads * kTo, kHeads * kTo));
    }
}

TEST(SoftCapCuda, BendsValuesToTheCap) {
  for (const std::size_t count : {1, 256, 1000}) {
    auto values = random_floats(count, 1, 60);
    values[0] = 1e30f;
    const auto run = [&](auto cap) {
      Guarded capped(values, Dtype::f32);
      cap(SoftCapArgs{capped.as<float>(), std::int64_t(count), 30});
      return capped;
    };
    const Guarded got = in_all_schedules([&] {
      return run([](const SoftCapArgs& args) { expect_done(soft_cap_cuda(args, nullptr)); });
    });
    expect_near(got, run(soft_cap_reference), Dtype::f32);
    EXPECT_EQ(got[0], 30);
  }
}

TEST(TuneQueriesCuda, MultipliesByWhatAPositionGives) {
  const std::vector<std::int32_t> positions = {0, 6, 7, 8, 131071};
  const std::size_t T = positions.size();
  for (const Dtype dtype : kActivations)
    for (const std::size_t width : {4, 40, 2052}) {
      const auto run = [&](auto tune) {
        Guarded q(random_floats(T * width, 1), dtype);
        tune(TuneQueriesArgs{.q = q.data(),
                             .positions = positions.data(),
                             .T = static_cast<std::int32_t>(T),
                             .width = static_cast<std::int32_t>(width),
                             .floor = 8,
                             .scale = 0.5f,
                             .dtype = dtype});
        return q;
      };
      const Guarded got = in_all_schedules([&] {
        return run(
            [](const TuneQueriesArgs& args) { expect_done(tune_queries_cuda(args, nullptr)); });
      });
      expect_near(got, run(tune_queries_reference), dtype);
      // Fewer keys than the floor, or one more.
      const Guarded before(random_floats(T * width, 1), dtype);
      EXPECT_EQ(got.slice(0, 2 * width), before.slice(0, 2 * width));
      EXPECT_NE(got.slice(2 * width, width), before.slice(2 * width, width));
    }
}

class GateMultiplyCuda : public ::testing::TestWithParam<Activation> {};

TEST_P(GateMultiplyCuda, MultipliesRowsAndHalvesOfRows) {
  constexpr std::int32_t T = 3;
  for (const Dtype dtype : kActivations)
    for (const std::int32_t I : {4, 172, 2052})
      for (const auto& [is_merged, is_weighted] :
           {std::pair{false, false}, {true, false}, {true, true}}) {
        const std::int64_t stride = is_merged ? 2 * I : I;
        auto gate = random_floats(std::size_t(T * stride), 1, 4), up = gate;
        gate[0] = -200;  // exp overflows; the result is 0
        gate[1] = 200;
        if (!is_merged) up = random_floats(gate.size(), 2);
        Guarded gates(gate, dtype), ups(up, dtype);
        GateMultiplyArgs args;
        args.gate = gates.data();
        args.up = is_merged ? gates.data() + I * bytes_of(dtype) : ups.data();
        args.T = T;
        args.I = I;
        args.in_stride = stride;
        args.dtype = dtype;
        args.activation = GetParam();
        const std::vector<float> weights = {0.25f, 1.0f, 0.5f};
        const std::vector<std::int32_t> pairs = {2, 0, 1};
        if (is_weighted) args.weights = weights.data(), args.pairs = pairs.data();
        const std::size_t count = std::size_t(T) * I;
        Guarded want(count, dtype);
        args.out = want.data();
        gate_multiply_reference(args);
        const Guarded got = in_all_schedules([&] {
          Guarded out(count, dtype);
          args.out = out.data();
          expect_done(gate_multiply_cuda(args, nullptr));
          return out;
        });
        expect_near(got, want, dtype);
        if (is_merged) continue;
        Guarded in_place(gate, dtype);
        args.gate = args.out = in_place.data();
        expect_done(gate_multiply_cuda(args, nullptr));
        EXPECT_TRUE(in_place == got);
      }
}

INSTANTIATE_TEST_SUITE_P(Activations, GateMultiplyCuda,
                         ::testing::Values(Activation::silu, Activation::gelu),
                         [](const auto& test) {
                           return test.param == Activation::silu ? "silu" : "gelu";
                         });

#if !defined(KVHIVE_GPU_TESTS)
TEST(RowKernelsCuda, RefuseWhatTheyCannotDoAndTakeNothing) {
  alignas(16) float memory[64] = {};
  const std::int32_t tokens[1] = {};
  const std::uint64_t before = simt::statistics().blocks;
  const auto code = [](const Expected<void>& done) {
    return done ? Errc::none : done.error().code;
  };
  EXPECT_EQ(code(embed_cuda({memory, tokens, memory, 1, 6}, nullptr)), Errc::unsupported);
  EXPECT_EQ(code(embed_cuda({memory + 1, tokens, memory, 1, 8}, nullptr)), Errc::unsupported);
  EXPECT_EQ(code(embed_cuda({memory, tokens, memory, 1, 8, Dtype::int8}, nullptr)),
            Errc::unsupported);
  EXPECT_EQ(code(embed_cuda({memory, tokens, memory, 0, 8}, nullptr)), Errc::none);
  AddRmsNormArgs norm{memory, nullptr, memory, memory, nullptr, 0, 8};
  EXPECT_EQ(code(add_rms_norm_cuda(norm, nullptr)), Errc::none);
  norm.n = -1;
  EXPECT_EQ(code(add_rms_norm_cuda(norm, nullptr)), Errc::bad_argument);
  RotateArgs rotate{memory, memory, tokens, memory, nullptr, nullptr, 1, 0, 1, 8};
  EXPECT_EQ(code(rotate_cuda(rotate, nullptr)), Errc::bad_argument);
  norm = {nullptr, nullptr, memory, memory, nullptr, 1, 8};
  EXPECT_EQ(code(add_rms_norm_cuda(norm, nullptr)), Errc::bad_argument);
  RotatePairsArgs pairs{memory, memory + 32, tokens, memory, 1, 1, 8, 8, 4};
  EXPECT_EQ(code(rotate_pairs_cuda(pairs, nullptr)), Errc::bad_argument);
  pairs.to_stride = 9;
  EXPECT_EQ(code(rotate_pairs_cuda(pairs, nullptr)), Errc::unsupported);
  GateMultiplyArgs gate{memory, memory, memory, 1, 8, 4};
  EXPECT_EQ(code(gate_multiply_cuda(gate, nullptr)), Errc::bad_argument);
  EXPECT_EQ(code(soft_cap_cuda({memory, 8, 0}, nullptr)), Errc::bad_argument);
  EXPECT_EQ(code(tune_queries_cuda({memory, tokens, 1, 8, 0}, nullptr)), Errc::bad_argument);
  EXPECT_EQ(code(tune_queries_cuda({memory, tokens, 1, 6, 8}, nullptr)), Errc::unsupported);
  EXPECT_EQ(simt::statistics().blocks, before);
}
#endif

}  // namespace
}  // namespace kvhive
