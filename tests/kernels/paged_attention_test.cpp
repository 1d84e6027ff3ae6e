// The contract of paged attention, for every implementation.

#include "kernels/paged_attention.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>

#include "backends.hpp"
#include "kv_fixture.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

class PagedAttention : public testing::TestWithParam<std::tuple<Backend, Dtype>> {
 protected:
  static Attention attention() { return std::get<Backend>(GetParam()).attention; }
  static Dtype dtype() { return std::get<Dtype>(GetParam()); }

  static void expect_dense_result(KvFixture& fixture, const std::vector<Query>& queries,
                                  const Features& features = {}) {
    if (!std::get<Backend>(GetParam()).takes(fixture.kv(), Dtype::f32)) return;
    const double error =
        worst_relative_error(fixture.attend(attention(), queries, features),
                             fixture.attend_densely(queries, features), fixture.shape().D);
    EXPECT_LT(error, 1e-5) << "H " << fixture.shape().H << " G " << fixture.shape().G << " D "
                           << fixture.shape().D << " S " << fixture.shape().S << " window "
                           << features.window;
  }
};

TEST_P(PagedAttention, GivesTheDenseResultForAnyHeadAndBlockSize) {
  const std::int32_t head_sizes[] = {8, 16, 32, 40, 64, 80, 96, 112, 128, 256};
  const std::int32_t block_sizes[] = {16, 1, 4, 8, 17, 32, 16, 64};
  const std::pair<std::int32_t, std::int32_t> heads[] = {{4, 4}, {4, 2}, {9, 3}, {8, 1},
                                                         {8, 2}, {5, 1}, {12, 2}};
  std::size_t i = 0;
  for (const std::int32_t D : head_sizes)
    for (int round = 0; round < 3; ++round, ++i) {
      const std::int32_t S = block_sizes[i % std::size(block_sizes)];
      const auto [H, G] = heads[i % std::size(heads)];
      const std::vector<std::int32_t> lengths{1, std::max(1, S - 1), S, S + 1, 17, 129};
      const auto gap = static_cast<std::int64_t>(3 * bytes_of(dtype()));  // rows not aligned
      KvFixture fixture({.dtype = dtype(), .H = H, .G = G, .D = D, .S = S, .gap = gap},
                        sequences_of(lengths));
      expect_dense_result(fixture, queries_of(lengths, 1));
      expect_dense_result(fixture, queries_of(lengths, 5));
    }
}

TEST_P(PagedAttention, GivesTheDenseResultForLongSequences) {
  const std::vector<std::int32_t> lengths{1023, 511, 512, 513, 1600};
  for (const std::int32_t D : {40, 64}) {
    KvFixture fixture({dtype(), 4, 2, D, 16}, sequences_of(lengths));
    expect_dense_result(fixture, queries_of(lengths, 1));
    expect_dense_result(fixture, queries_of(lengths, 3));
  }
}

TEST_P(PagedAttention, GivesTheDenseResultForWholePrompts) {
  const std::vector<std::int32_t> lengths{150, 1, 16, 129};
  for (const std::int32_t G : {1, 2, 8}) {
    KvFixture fixture({dtype(), 8, G, 64, 16}, sequences_of(lengths));
    expect_dense_result(fixture, queries_of(lengths, 1000));
  }
}

TEST_P(PagedAttention, GivesTheDenseResultInAnyWindow) {
  const std::vector<std::int32_t> lengths{1, 17, 64, 129, 300, 700};
  KvFixture fixture({dtype(), 6, 2, 32, 16}, sequences_of(lengths));
  for (const std::int32_t window : {1, 3, 15, 16, 64, 128, 299, 300, 700, 100000}) {
    expect_dense_result(fixture, queries_of(lengths, 1), {.window = window});
    expect_dense_result(fixture, queries_of(lengths, 20), {.window = window});
  }
}

TEST_P(PagedAttention, TakesDecodesPrefillsAndEmptySequencesInOneBatch) {
  KvFixture fixture({dtype(), 8, 2, 64, 16}, sequences_of({300, 0, 40, 129, 0}));
  expect_dense_result(fixture,
                      {{1, 0, 0}, {0, 300, 1}, {2, 40, 40}, {0, 200, 0}, {3, 129, 60}, {4, 0, 0}});
}

TEST_P(PagedAttention, TakesABatchOfNothing) {
  KvFixture fixture({dtype()}, sequences_of({0}));
  EXPECT_TRUE(fixture.attend(attention(), {}).empty());
  EXPECT_TRUE(fixture.attend(attention(), {{0, 0, 0}}).empty());
}

TEST_P(PagedAttention, LetsSequencesShareBlocks) {
  KvFixture fixture({dtype(), 4, 2, 32, 16}, sequences_of({100}));
  expect_dense_result(fixture, {{0, 100, 1}, {0, 100, 20}, {0, 37, 2}, {0, 64, 64}});
}

TEST_P(PagedAttention, NeverReadsBlocksBeforeTheWindow) {
  KvFixture fixture({dtype(), 4, 2, 32, 16}, sequences_of({400}));
  const std::vector<Query> queries{{0, 400, 10}};
  const std::int32_t window = 100;
  fixture.drop_first_blocks(0, (400 - 10 + 1 - window) / 16);
  expect_dense_result(fixture, queries, {.window = window});
}

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttention,
                         testing::Combine(testing::ValuesIn(kBackends),
                                          testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16)),
                         [](const auto& test) {
                           return std::string(std::get<Backend>(test.param).name) + "_" +
                                  std::string(to_string(std::get<Dtype>(test.param)));
                         });

}  // namespace
}  // namespace kvhive
