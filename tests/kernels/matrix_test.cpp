// Attention over the whole matrix of cases: right with all options, and bit-equal however the work
// is cut.

#include "matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "backends.hpp"
#if !defined(KVHIVE_GPU_TESTS)
#include "kernels/cpu/packed/packed_attention.hpp"
#endif

namespace kvhive {
namespace {

using namespace testing_support;

/// The matrix is cut into this many tests, which can run side by side.
constexpr std::size_t kShards = 8;
constexpr double kLseTolerance = 2e-4;

class AttentionMatrix : public testing::TestWithParam<std::tuple<Backend, std::size_t>> {
 protected:
  static Backend backend() { return std::get<Backend>(GetParam()); }

  /// Calls work(case, fixture) for every stride-th case of this shard that the backend takes.
  template <class Work>
  static void for_cases(std::size_t stride, const Work& work) {
    static const std::vector<MatrixCase> cases = matrix_cases();
    for (std::size_t i = std::get<std::size_t>(GetParam()); i < cases.size();
         i += stride * kShards) {
      KvFixture fixture(cases[i].shape, cases[i].sequences, static_cast<std::uint32_t>(i));
      if (!backend().takes(fixture.kv(), cases[i].shape.q_dtype)) continue;
      SCOPED_TRACE(cases[i].name);
      work(cases[i], fixture);
    }
  }
};

/// Compares both outputs.
bool same_bits(const Output& a, const Output& b) {
  return testing_support::same_bits(a.out, b.out) && testing_support::same_bits(a.lse, b.lse);
}

void append(Output& all, const Output& part) {
  all.out.insert(all.out.end(), part.out.begin(), part.out.end());
  all.lse.insert(all.lse.end(), part.lse.begin(), part.lse.end());
}

/// Whether the case is computed by bf16 dot products, which round queries and the weights to bf16.
bool rounds_to_bf16([[maybe_unused]] const Backend& backend, [[maybe_unused]] const MatrixCase& one,
                    [[maybe_unused]] const PagedKv& kv) {
#if defined(KVHIVE_GPU_TESTS)
  return false;
#else
  PagedAttentionArgs args;
  args.kv = kv;
  args.q_dtype = one.shape.q_dtype;
  args.chunk = one.features.chunk;
  args.soft_cap = one.features.soft_cap;
  return backend.attention == paged_attention_cpu && packed_attention_takes(args);
#endif
}

TEST_P(AttentionMatrix, GivesTheDenseResult) {
  for_cases(1, [&](const MatrixCase& one, KvFixture& fixture) {
    const bool is_bf16 = rounds_to_bf16(backend(), one, fixture.kv());
    // Else the error would be that of the queries, times their scores.
    if (is_bf16) fixture.round_queries_to(Dtype::bf16);
    const Output got = fixture.run(backend().attention, one.queries, one.features);
    const ExactOutput want = fixture.run_densely(one.queries, one.features);
    EXPECT_LE(worst_relative_error(got.out, want.out, one.shape.D),
              is_bf16 ? 4e-3 : tolerance_of(one.shape));
    if (one.features.wants_lse) {
      EXPECT_LE(worst_error(got.lse, want.lse), is_bf16 ? 1e-2 : kLseTolerance);
    }
  });
}

using AttentionMatrixBits = AttentionMatrix;

/// A case is computed five times, for which an emulated GPU takes a quarter of a second: it takes
/// every sixth case. KVHIVE_EVERY_CASE=1 (`make matrices`): all of them.
std::size_t stride_of([[maybe_unused]] const Backend& backend) {
#if defined(KVHIVE_HAS_CUDA_BACKEND) && !defined(KVHIVE_GPU_TESTS)
  const bool is_emulated = backend.name == cuda_backend().name;
  if (is_emulated && std::getenv("KVHIVE_EVERY_CASE") == nullptr) return 6;
#endif
  return 1;
}

TEST_P(AttentionMatrixBits, AreTheSameHoweverTheWorkIsCut) {
  for_cases(stride_of(backend()), [&](const MatrixCase& one, KvFixture& fixture) {
    Output by_one, alone, in_halves;
    {
      const Workers workers(backend(), 1);
      by_one = fixture.run(backend().attention, one.queries, one.features);
      for (const Query& query : one.queries) {
        append(alone, fixture.run(backend().attention, {query}, one.features));
        const std::int32_t half = query.q_len / 2;
        append(in_halves, fixture.run(backend().attention,
                                      {{query.sequence, query.kv_len - (query.q_len - half), half}},
                                      one.features));
        append(in_halves,
               fixture.run(backend().attention,
                           {{query.sequence, query.kv_len, query.q_len - half}}, one.features));
      }
    }
    EXPECT_TRUE(same_bits(by_one, alone)) << "alone and in a batch";
    EXPECT_TRUE(same_bits(by_one, in_halves)) << "whole and in chunks";
    for (const int count : {2, 3}) {
      const Workers workers(backend(), count);
      EXPECT_TRUE(same_bits(by_one, fixture.run(backend().attention, one.queries, one.features)))
          << count << " workers";
    }
  });
}

std::string name_of_shard(const testing::TestParamInfo<AttentionMatrix::ParamType>& test) {
  return std::get<Backend>(test.param).name + ("_" + std::to_string(std::get<1>(test.param)));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionMatrix,
                         testing::Combine(testing::ValuesIn(kBackends),
                                          testing::Range(std::size_t{0}, kShards)),
                         name_of_shard);

INSTANTIATE_TEST_SUITE_P(Backends, AttentionMatrixBits,
                         testing::Combine(testing::ValuesIn(backends_with_workers()),
                                          testing::Range(std::size_t{0}, kShards)),
                         name_of_shard);

TEST(AttentionMatrixCases, AreAtLeastThreeHundredForEveryBackend) {
  const std::vector<MatrixCase> cases = matrix_cases();
  for (const Backend& backend : kBackends) {
    const auto taken = std::count_if(cases.begin(), cases.end(), [&](const MatrixCase& one) {
      return backend.takes(PagedArena(one.shape, 1).kv(), one.shape.q_dtype);
    });
    EXPECT_GE(taken, 300) << backend.name;
  }
}

}  // namespace
}  // namespace kvhive
