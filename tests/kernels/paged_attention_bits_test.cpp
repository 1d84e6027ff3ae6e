// paged_attention_cpu gives a query token the same bits whatever else is in the batch. Because of
// this, engines can share prefixes, preempt and recompute without changing a token.

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/paged_attention.hpp"
#include "kv_fixture.hpp"

namespace kvhive {
namespace {

using namespace testing_support;

struct Case {
  Shape shape;
  std::int32_t window;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Shape& s = info.param.shape;
  return std::string(to_string(s.dtype)) + "_H" + std::to_string(s.H) + "_G" + std::to_string(s.G) +
         "_D" + std::to_string(s.D) + "_S" + std::to_string(s.S) + "_W" +
         std::to_string(info.param.window);
}

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

class PagedAttentionBits : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int32_t kTokens = 1300;  ///< three spans

  static Shape shape() { return GetParam().shape; }

  static std::vector<float> attend(KvFixture& fixture, const std::vector<Query>& queries) {
    return fixture.attend(paged_attention_cpu, queries, {.window = GetParam().window});
  }

  /// Computes all tokens from `first` on, in calls of `chunk` tokens.
  static std::vector<float> attend_in_chunks(KvFixture& fixture, std::int32_t first,
                                             std::int32_t chunk) {
    std::vector<float> out;
    for (std::int32_t begin = first; begin < kTokens; begin += chunk) {
      const std::int32_t end = std::min(begin + chunk, kTokens);
      const std::vector<float> part = attend(fixture, {{0, end, end - begin}});
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
};

TEST_P(PagedAttentionBits, AreTheSameAloneAndInABatch) {
  KvFixture fixture(shape(), {{1, kTokens}, {2, 700}, {3, 31}, {4, 0}, {5, 1100}});
  const std::vector<Query> batch{{2, 31, 31}, {0, kTokens, 1}, {1, 700, 50},
                                 {3, 0, 0},   {0, 800, 7},     {4, 1100, 1}};
  const std::vector<float> together = attend(fixture, batch);
  std::vector<float> alone;
  for (const Query& query : batch) {
    const std::vector<float> part = attend(fixture, {query});
    alone.insert(alone.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(same_bits(together, alone));
}

TEST_P(PagedAttentionBits, AreTheSameInAnyChunking) {
  KvFixture fixture(shape(), {{1, kTokens}});
  const std::vector<float> whole = attend_in_chunks(fixture, 0, kTokens);
  for (const std::int32_t chunk : {16, 100, 511})
    EXPECT_TRUE(same_bits(whole, attend_in_chunks(fixture, 0, chunk))) << chunk;
}

TEST_P(PagedAttentionBits, AreTheSameInDecodeAndPrefill) {
  const Threads one(
      1);  // there are many small calls, in which waking threads takes longer than the work
  KvFixture fixture(shape(), {{1, kTokens}});
  const std::vector<float> whole = attend_in_chunks(fixture, 0, kTokens);
  const std::int32_t token_elements = shape().H * shape().D;
  for (const std::int32_t first : {kTokens - 300, kTokens - 299}) {
    const auto tail = std::span(whole).subspan(std::size_t(first) * token_elements);
    EXPECT_TRUE(same_bits(tail, attend_in_chunks(fixture, first, 1)));
    EXPECT_TRUE(same_bits(tail, attend_in_chunks(fixture, first, 3)));
  }
}

TEST_P(PagedAttentionBits, AreTheSameWithAnyNumberOfThreads) {
  KvFixture fixture(shape(), {{1, kTokens}, {2, 600}});
  for (const std::vector<Query>& queries :
       {std::vector<Query>{{0, kTokens, 1}}, {{0, kTokens, 9}, {1, 600, 1}}, {{1, 600, 600}}}) {
    std::vector<float> by_one;
    {
      const Threads one(1);
      by_one = attend(fixture, queries);
    }
    for (const int count : {2, 5, 16}) {
      const Threads several(count);
      EXPECT_TRUE(same_bits(by_one, attend(fixture, queries))) << count << " threads";
    }
  }
}

TEST_P(PagedAttentionBits, AreTheSameInAnyBlocks) {
  KvFixture here(shape(), {{1, kTokens}}, 1);
  KvFixture there(shape(), {{9, 40}, {1, kTokens}}, 2);
  EXPECT_TRUE(same_bits(attend(here, {{0, kTokens, 1}}), attend(there, {{1, kTokens, 1}})));
  EXPECT_TRUE(same_bits(attend(here, {{0, 900, 100}}), attend(there, {{1, 900, 100}})));
}

TEST_P(PagedAttentionBits, DoNotDependOnLaterTokensInTheCache) {
  const std::vector<Query> queries{{0, 1000, 1}, {0, 1000, 60}};
  KvFixture later_tokens(shape(), {{1, kTokens}});
  KvFixture nothing(shape(), {{1, 1000}});
  KvFixture poison(shape(), {{1, kTokens}});
  poison.poison_tokens_from(0, 1000, std::numeric_limits<float>::infinity());
  const std::vector<float> expected = attend(nothing, queries);
  EXPECT_TRUE(same_bits(expected, attend(later_tokens, queries)));
  EXPECT_TRUE(same_bits(expected, attend(poison, queries)));
}

TEST_P(PagedAttentionBits, OfATokenIgnoreALaterOneOfItsOwnCall) {
  KvFixture finite(shape(), {{1, kTokens}});
  KvFixture poison(shape(), {{1, kTokens}});
  poison.poison_tokens_from(0, 995, 60000.0f);
  const std::vector<float> a = attend(finite, {{0, 1000, 60}});
  const std::vector<float> b = attend(poison, {{0, 1000, 60}});
  const std::size_t before = 55u * shape().H * shape().D;
  EXPECT_TRUE(same_bits(std::span(a).first(before), std::span(b).first(before)));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PagedAttentionBits,
    testing::Values(Case{{Dtype::bf16, 8, 2, 64, 16}, 0}, Case{{Dtype::bf16, 8, 2, 64, 16}, 200},
                    Case{{Dtype::bf16, 9, 3, 40, 16}, 0}, Case{{Dtype::f16, 2, 2, 80, 8}, 0},
                    Case{{Dtype::f16, 5, 1, 32, 17}, 64}, Case{{Dtype::f32, 3, 3, 16, 1}, 10},
                    Case{{Dtype::f32, 2, 1, 128, 32}, 0}, Case{{Dtype::bf16, 36, 1, 24, 16}, 600}),
    name_of);

}  // namespace
}  // namespace kvhive
