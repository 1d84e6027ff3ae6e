// The CPU backend with each instruction set that it is compiled for.

#include <gtest/gtest.h>

#include <cstdint>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <vector>

#include "kernels/paged_attention.hpp"
#include "kv_fixture.hpp"
#include "tests/support/pretended_cpu.hpp"

namespace kvhive {
namespace {

using namespace testing_support;
using testing::PretendedCpu;

TEST(PagedAttentionTargets, GiveTheDenseResultOnOlderCpus) {
  const std::vector<std::int32_t> lengths{1, 17, 129, 700};
  for (const std::int64_t target : {HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    if ((hwy::SupportedTargets() & target) == 0 && target != HWY_SCALAR) continue;
    const PretendedCpu cpu(target);
    for (const Dtype dtype :
         {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::e4m3, Dtype::e5m2, Dtype::int8})
      for (const std::int32_t D : {40, 64}) {
        KvFixture fixture({dtype, 6, 2, D, 16}, sequences_of(lengths));
        const std::vector<Query> queries = queries_of(lengths, 3);
        EXPECT_LT(worst_relative_error(fixture.attend(paged_attention_cpu, queries),
                                       fixture.attend_densely(queries), D),
                  1e-5)
            << hwy::TargetName(target);
      }
  }
}

}  // namespace
}  // namespace kvhive
