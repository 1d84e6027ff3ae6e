// Whole models with the instruction sets of CPUs before AVX2, down to one element at a time.

#include <gtest/gtest.h>

#include <cstdint>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include "models/transformer.hpp"
#include "tests/emulated/arithmetic.hpp"
#include "tests/models/golden.hpp"
#include "tests/models/paged_runner.hpp"
#include "tests/support/pretended_cpu.hpp"

namespace kvhive {
namespace {

struct Case {
  const char* model;
  double tolerance;
};

TEST(OlderCpus, ComputeWhatFloat64Does) {
  const testing_support::ComputedBy plain({CpuKernels::sse4});
  for (const auto& [name, tolerance] :
       {Case{"llama2", 1e-5}, Case{"llama3", 1e-2}, Case{"mistral", 1e-5}, Case{"gemma3", 1e-2},
        Case{"qwen3_moe", 1e-2}, Case{"fp8_block", 1e-2}, Case{"gptq_act_order", 1e-2},
        Case{"awq", 1.5e-2}, Case{"w8a8", 1e-5}, Case{"deepseek_v2", 2e-2}, Case{"llama4", 1e-5}}) {
    auto model = Transformer::load(kGolden / name).value();
    const auto golden = read_golden(name);
    const Dtype kv_dtype = model.config().is_latent() ? Dtype::bf16 : Dtype::f32;
    for (const std::int64_t target : {HWY_SCALAR, HWY_SSSE3, HWY_SSE4}) {
      const testing::PretendedCpu cpu(target);
      PagedRunner runner(model, kv_dtype, 4, 64, 1);
      const auto logits = runner.run_chunked(0, golden.tokens, {golden.tokens.size()});
      EXPECT_LT(relative_error(logits, golden.logits), tolerance)
          << name << ", " << hwy::TargetName(target);
    }
  }
}

}  // namespace
}  // namespace kvhive
