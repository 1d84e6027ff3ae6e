// Small batches for instrumented builds of the kernels: a race or an access that is out of bounds
// or misaligned ends the program. Other tests check the values.

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/cuda/attention_case.hpp"
#include "tests/kernels/cuda/schedules.hpp"

namespace kvhive {
namespace {

using testing_support::AttentionBatch;
using testing_support::AttentionCase;
using testing_support::in_every_schedule;
using testing_support::ScaleKind;

void attend(AttentionCase c, const PlanLimits& limits = {}) {
  c.G = 1;
  const AttentionBatch batch(c);
  in_every_schedule([&] { batch.run(limits); });
}

TEST(Sanitized, PagedAttention) {
  attend({.kv_dtype = Dtype::bf16, .heads_per_kv = 2, .sequences = {{37, 1}, {130, 1}}});
  attend({.kv_dtype = Dtype::e4m3,
          .D = 80,
          .heads_per_kv = 1,
          .sequences = {{37, 2}},
          .soft_cap = 10,
          .scales = ScaleKind::per_token});
  attend({.kv_dtype = Dtype::int8, .D = 120, .heads_per_kv = 2, .sequences = {{19, 1}}});
}

TEST(Sanitized, PagedAttentionOnTensorCores) {
  attend({.heads_per_kv = 4, .sequences = {{140, 1}}});
  // Two sequences with a common prefix, one of them in prefill; runs and separate states.
  attend({.heads_per_kv = 8, .sequences = {{140, 1}, {135, 2, 128, 0}}});
  attend({.heads_per_kv = 8, .sequences = {{70, 5}}}, {.tiles = 1});
  attend({.q_dtype = Dtype::f16,
          .kv_dtype = Dtype::f16,
          .D = 80,
          .heads_per_kv = 5,
          .sequences = {{70, 1}},
          .soft_cap = 10});
}

TEST(Sanitized, PagedAttentionOfEightBitsOnTensorCores) {
  attend({.kv_dtype = Dtype::int8,
          .D = 80,
          .heads_per_kv = 4,
          .sequences = {{70, 5}, {20, 1}},
          .scales = ScaleKind::per_token});
}

TEST(Sanitized, CacheWrite) {
  constexpr std::int32_t T = 3, G = 2, S = 4;
  for (const std::int32_t D : {64, 65}) {  // packed, element by element
    const std::vector<float> in(static_cast<std::size_t>(T * G * D), 1.5f);
    const std::vector<std::int64_t> slots = {6, -1, 1};
    in_every_schedule([&] {
      std::vector<std::byte> k(static_cast<std::size_t>(2 * G * S * D)), v = k;
      std::vector<float> k_scales(2 * G * S), v_scales = k_scales;
      CacheWriteArgs args;
      args.k = args.v = in.data();
      args.slot_mapping = slots.data();
      args.kv = {k.data(), v.data(), G * S * D, S * D, D, G, S, D, Dtype::e4m3};
      args.kv.scales = {k_scales.data(), v_scales.data(), G * S * 4, S * 4, 4};
      args.T = T;
      ASSERT_TRUE(cache_write_cuda(args, nullptr).has_value());
    });
  }
}

TEST(Sanitized, LatentAttention) {
  constexpr std::int32_t T = 70, S = 16, H = 3;
  for (const auto& [row, q_dtype] : {std::pair{MlaRow::bf16, Dtype::f32},
                                     {MlaRow::fp8, Dtype::f32},
                                     {MlaRow::bf16, Dtype::bf16},  // these on tensor cores
                                     {MlaRow::fp8, Dtype::bf16}}) {
    const std::vector<float> in(static_cast<std::size_t>(T) * kMlaRow, 0.5f);
    const std::vector<BlockId> table = {{4}, {0}, {3}, {1}, {2}};
    const std::vector<std::int32_t> query_start = {0, 1}, kv_len = {T};
    std::vector<std::int64_t> slots;
    for (std::int32_t t = 0; t < T; ++t)
      slots.push_back(std::int64_t{table[t / S].value} * S + t % S);
    in_every_schedule([&, row = row, q_dtype = q_dtype] {
      const auto stride = static_cast<std::int64_t>(bytes_of(row));
      std::vector<std::byte> cache(table.size() * static_cast<std::size_t>(S * stride));
      const PagedLatents kv{cache.data(), S * stride, stride, S, row};
      ASSERT_TRUE(mla_write_cuda({in.data(), in.data(), slots.data(), kv, T, Dtype::f32}, nullptr));
      std::vector<float> out(H * kMlaLatent), lse(H);
      const PagedMlaArgs args{in.data(),
                              kv,
                              table.data(),
                              query_start.data(),
                              kv_len.data(),
                              out.data(),
                              lse.data(),
                              1,
                              H,
                              5,
                              q_dtype,
                              0.1f};
      const SplitPlan plan = plan_splits(args);
      std::vector<float> states(plan.state_floats(H, kMlaLatent));
      ASSERT_TRUE(paged_mla_cuda(args, plan.work(states.data()), nullptr));
    });
  }
}

TEST(Sanitized, CopyAndMerge) {
  const std::vector<BlockPair> pairs = {{1, 0}, {0, 2}};
  const std::vector<float> lse = {0, 1};
  in_every_schedule([&] {
    for (const std::size_t bytes : {48u, 5u}) {
      const std::vector<std::byte> source(2 * bytes);
      std::vector<std::byte> destination(3 * bytes);
      ASSERT_TRUE(
          block_copy_cuda(whole_blocks(source.data(), destination.data(), bytes, pairs), nullptr)
              .has_value());
    }
    std::vector<float> part(2 * 72), merged_lse = lse;
    ASSERT_TRUE(merge_states_cuda({part.data(), part.data(), lse.data(), merged_lse.data(),
                                   part.data(), merged_lse.data(), 1, 2, 72, Dtype::f32},
                                  nullptr)
                    .has_value());
  });
}

TEST(Sanitized, RowProduct) {
  constexpr std::int32_t N = 40, K = 136;
  for (const std::int32_t T : {3, 40}) {
    alignas(16) static std::uint16_t x[40 * K], w[N * K];
    in_every_schedule([&] {
      std::vector<float> y(static_cast<std::size_t>(T * N));
      const RowProductArgs args{x, w, nullptr, y.data(), T, N, K, Dtype::bf16, Dtype::f32};
      ASSERT_TRUE(row_product_cuda(args, nullptr).has_value());
    });
  }
}

TEST(Sanitized, AdapterProduct) {
  constexpr std::int32_t N = 40, K = 136, R = 6;
  const std::vector<std::int32_t> adapters = {0, -1, 1};
  const std::vector<AdapterMatrices> matrices = {{0, 16 * K, 5, 1.0f}, {}};
  alignas(16) static std::uint16_t x[3 * K], memory[8 * K + 8 * N];
  in_every_schedule([&] {
    std::vector<float> y(3 * N), narrow(3 * R);
    ASSERT_TRUE(adapter_product_cuda({.x = x,
                                      .base = reinterpret_cast<const std::byte*>(memory),
                                      .matrices = matrices.data(),
                                      .adapters = adapters.data(),
                                      .narrow = narrow.data(),
                                      .y = y.data(),
                                      .T = 3,
                                      .N = N,
                                      .K = K,
                                      .R = R,
                                      .dtype = Dtype::bf16,
                                      .out_dtype = Dtype::f32},
                                     nullptr));
  });
}

TEST(Sanitized, RowKernels) {
  constexpr std::int32_t T = 2, H = 3, G = 1, D = 24, kWidth = 20;
  constexpr Dtype kBf16 = Dtype::bf16;
  const std::vector<std::int32_t> tokens = {2, 0}, positions = {0, 131072}, rows = {1, 1, 0};
  const std::vector<std::uint16_t> table(3 * kWidth, 0x3f80), up(T * kWidth, 0x3f80);
  const std::vector<float> weight(kWidth, 0.5f), norm(D, 2.0f), frequencies(D / 2, 0.7f);
  in_every_schedule([&] {
    std::vector<float> residual(T * kWidth), delta(T * kWidth, 0.25f);
    ASSERT_TRUE(
        embed_cuda({table.data(), tokens.data(), residual.data(), T, kWidth, kBf16}, nullptr));
    std::vector<std::uint16_t> out(T * kWidth), named(3 * kWidth);
    AddRmsNormArgs args{residual.data(), delta.data(), weight.data(), out.data(), nullptr, T,
                        kWidth,          1e-5f,        Dtype::f32,    kBf16};
    ASSERT_TRUE(add_rms_norm_cuda(args, nullptr));
    args.out = named.data();
    args.rows = rows.data();
    args.n = 3;
    ASSERT_TRUE(add_rms_norm_cuda(args, nullptr));
    ASSERT_TRUE(
        gate_multiply_cuda({out.data(), up.data(), out.data(), T, kWidth, kWidth, kBf16}, nullptr));
    std::vector<std::uint16_t> q(T * H * D, 0x3f80), k(T * G * D, 0x3f80);
    ASSERT_TRUE(rotate_cuda({q.data(), k.data(), positions.data(), frequencies.data(), norm.data(),
                             norm.data(), T, H, G, D, 1e-5f, kBf16},
                            nullptr));
  });
}

TEST(Sanitized, Experts) {
  constexpr std::int32_t T = 3, E = 5, k = 2, kWidth = 24, kInner = 40;
  const std::vector<float> logits = {1, 5, 2, 4, 3, 0, 0, 0, 0, 0, 9, 8, 7, 6, 5};
  const std::vector<std::uint16_t> x(T * kWidth, 0x3f80), w(E * kInner * kWidth, 0x3f80);
  in_every_schedule([&] {
    std::vector<std::int32_t> experts(T * k), pairs(T * k), places(T * k), first(E + 1);
    std::vector<float> weights(T * k), out(T * kInner);
    std::vector<std::uint16_t> y(T * k * kInner);
    ASSERT_TRUE(
        choose_experts_cuda({logits.data(), experts.data(), weights.data(), T, E, k}, nullptr));
    ASSERT_TRUE(sort_by_expert_cuda(
        {experts.data(), pairs.data(), places.data(), first.data(), T, E, k}, nullptr));
    ASSERT_TRUE(expert_product_cuda({.x = x.data(),
                                     .w = w.data(),
                                     .y = y.data(),
                                     .pairs = pairs.data(),
                                     .first = first.data(),
                                     .rows = T * k,
                                     .k = k,
                                     .E = E,
                                     .N = kInner,
                                     .K = kWidth},
                                    nullptr));
    ASSERT_TRUE(mix_experts_cuda(
        {y.data(), weights.data(), places.data(), out.data(), T, k, kInner}, nullptr));
  });
}

TEST(Sanitized, Sample) {
  constexpr std::int32_t kVocab = 131, K = 2;
  std::vector<float> logits(2 * kVocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const std::vector<SampleChoice> choices = {
      {.likeliest = K}, {.temperature = 1, .top_p = 0.7f, .min_p = 0.001f, .top_k = 40}};
  in_every_schedule([&] {
    std::vector<std::int32_t> tokens(2), listed(2 * K);
    std::vector<float> logprobs(2), listed_logprobs(2 * K);
    ASSERT_TRUE(sample_cuda({logits.data(), choices.data(), tokens.data(), logprobs.data(),
                             listed.data(), listed_logprobs.data(), 2, kVocab, K},
                            nullptr));
  });
}

}  // namespace
}  // namespace kvhive
