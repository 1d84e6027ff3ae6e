#include "kernels/arguments.hpp"

#include "base/check.hpp"

namespace kvhive {
namespace {

bool is_activation(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

void check_layout(const PagedKv& kv) {
  KV_CHECK(kv.G > 0 && kv.S > 0 && kv.D > 0, kv.G, kv.S, kv.D);
  KV_CHECK(kv.dtype <= Dtype::int8, int(kv.dtype));
  KV_CHECK(kv.layout == PageLayout::rows || kv.layout == PageLayout::packed, int(kv.layout));
  if (kv.layout == PageLayout::packed) {
    KV_CHECK(kv.dtype == Dtype::bf16 || bytes_of(kv.dtype) == 1, int(kv.dtype));
    KV_CHECK(kv.S % 16 == 0, kv.S);
    KV_CHECK(kv.D % 32 == 0, kv.D);
  }
}

void check_cache(const PagedKv& kv) {
  check_layout(kv);
  const KvScales& scales = kv.scales;
  KV_CHECK(bytes_of(kv.dtype) == 1 || (scales.k == nullptr && scales.v == nullptr), int(kv.dtype));
  KV_CHECK(!scales.are_per_token() || (scales.k != nullptr && scales.v != nullptr),
           scales.token_stride);
  KV_CHECK(scales.are_per_token() || scales.block_stride == 0, scales.block_stride);
  KV_CHECK((scales.block_stride | scales.head_stride | scales.token_stride) % 4 == 0,
           scales.block_stride, scales.head_stride, scales.token_stride);
}

void check_batch(const std::int32_t* query_start, const std::int32_t* kv_len, std::int32_t B,
                 std::int64_t table_tokens) {
  KV_CHECK(B >= 0, B);
  for (std::int32_t b = 0; b < B; ++b) {
    const std::int32_t q_len = query_start[b + 1] - query_start[b];
    KV_CHECK(q_len >= 0 && q_len <= kv_len[b], b, q_len, kv_len[b]);
    KV_CHECK(kv_len[b] <= table_tokens, b, kv_len[b], table_tokens);
  }
}

}  // namespace

void check_arguments(const PagedAttentionArgs& args) {
  check_cache(args.kv);
  KV_CHECK(is_activation(args.q_dtype), int(args.q_dtype));
  KV_CHECK(args.kv.D % 8 == 0, args.kv.D);
  KV_CHECK(args.H > 0 && args.H % args.kv.G == 0, args.H, args.kv.G);
  KV_CHECK(args.window >= 0 && args.chunk >= 0, args.window, args.chunk);
  KV_CHECK(args.soft_cap >= 0, args.soft_cap);
  check_batch(args.query_start, args.kv_len, args.B, std::int64_t{args.M} * args.kv.S);
}

void check_arguments(const CacheWriteArgs& args) {
  check_cache(args.kv);
  KV_CHECK(is_activation(args.in_dtype), int(args.in_dtype));
  KV_CHECK(args.T >= 0, args.T);
}

void check_arguments(const MergeStatesArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.H > 0 && args.D > 0, args.T, args.H, args.D);
}

void check_arguments(const PagedMlaArgs& args) {
  KV_CHECK(args.kv.row <= MlaRow::fp8, int(args.kv.row));
  KV_CHECK(is_activation(args.q_dtype), int(args.q_dtype));
  KV_CHECK(args.H > 0 && args.kv.S > 0, args.H, args.kv.S);
  check_batch(args.query_start, args.kv_len, args.B, std::int64_t{args.M} * args.kv.S);
}

void check_arguments(const MlaWriteArgs& args) {
  KV_CHECK(args.kv.row <= MlaRow::fp8, int(args.kv.row));
  KV_CHECK(is_activation(args.in_dtype), int(args.in_dtype));
  KV_CHECK(args.T >= 0 && args.kv.S > 0, args.T, args.kv.S);
}

void check_arguments(const EmbedArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.width > 0, args.T, args.width);
}

void check_arguments(const AddRmsNormArgs& args) {
  KV_CHECK(is_activation(args.delta_dtype) && is_activation(args.out_dtype), int(args.delta_dtype),
           int(args.out_dtype));
  KV_CHECK(args.n >= 0 && args.width > 0, args.n, args.width);
  KV_CHECK(args.delta_stride == 0 || args.delta_stride >= args.width, args.delta_stride,
           args.width);
}

void check_arguments(const RotateArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.H > 0 && args.G > 0, args.T, args.H, args.G);
  KV_CHECK(args.D > 0 && args.D % 2 == 0, args.D);
}

void check_arguments(const RotatePairsArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.H > 0, args.T, args.H);
  KV_CHECK(args.D > 0 && args.D % 2 == 0, args.D);
  KV_CHECK(args.from_stride >= args.D && args.to_stride >= args.D, args.from_stride,
           args.to_stride);
}

void check_arguments(const GateMultiplyArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.I > 0 && args.in_stride >= args.I, args.T, args.I, args.in_stride);
}

void check_arguments(const TuneQueriesArgs& args) {
  KV_CHECK(is_activation(args.dtype), int(args.dtype));
  KV_CHECK(args.T >= 0 && args.width > 0 && args.floor > 0, args.T, args.width, args.floor);
}

void check_arguments(const SoftCapArgs& args) {
  KV_CHECK(args.count >= 0 && args.cap > 0, args.count, args.cap);
}

void check_arguments(const SampleArgs& args) {
  KV_CHECK(args.n >= 0 && args.vocab > 0 && args.K >= 0, args.n, args.vocab, args.K);
  for (std::int32_t row = 0; row < args.n; ++row)
    KV_CHECK(args.choices[row].likeliest <= args.K, row, args.choices[row].likeliest, args.K);
}

}  // namespace kvhive
