#include "kernels/paged_mla.hpp"

#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/mla_row.hpp"

namespace kvhive {
namespace device {

Expected<void> mma_mla(const PagedAttentionArgs& args, const PagedLatents& kv,
                       const AttentionWork& work, CudaStream stream);

namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 2;                               ///< heads of a warp
constexpr int kBlockHeads = kThreads / kWarp * kHeads;  ///< heads that share a row in shared memory
constexpr int kTokens = 8;                              ///< tokens of a stage
constexpr int kStages = 3;

/// A lane's elements: kVec consecutive ones of each scale group of the latent, and two of the rope.
constexpr int kGroups = kMlaLatent / static_cast<int>(kMlaScaleGroup);
constexpr int kVec = static_cast<int>(kMlaScaleGroup) / kWarp;
constexpr int kLatents = kGroups * kVec;
constexpr int kRopes = kMlaRope / kWarp;
static_assert(kVec == 4 && kRopes == 2);

__device__ __forceinline__ int latent_of(int i, int lane) {
  return i / kVec * static_cast<int>(kMlaScaleGroup) + lane * kVec + i % kVec;
}
__device__ __forceinline__ int rope_of(int i, int lane) { return kMlaLatent + lane * kRopes + i; }

/// Loads a lane's elements of a row.
template <MlaRow kRow>
__device__ __forceinline__ void read_row(const std::byte* row, int lane, float (&latents)[kLatents],
                                         float (&ropes)[kRopes]) {
  constexpr Dtype kStored = kRow == MlaRow::bf16 ? Dtype::bf16 : Dtype::e4m3;
  constexpr std::size_t kRopeBegin = kRow == MlaRow::bf16 ? 2 * kMlaLatent : kMlaRopeAt;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const auto pack = reinterpret_cast<const Pack<kStored, kVec>*>(row)[j * kWarp + lane];
    float scale = 1.0f;
    if constexpr (kRow == MlaRow::fp8)
      scale = reinterpret_cast<const float*>(row + kMlaScalesAt)[j];
#pragma unroll
    for (int e = 0; e < kVec; ++e)
      latents[j * kVec + e] = Element<kStored>::value(pack.of[e]) * scale;
  }
  const auto pack = reinterpret_cast<const Pack<Dtype::bf16, kRopes>*>(row + kRopeBegin)[lane];
#pragma unroll
  for (int e = 0; e < kRopes; ++e) ropes[e] = Element<Dtype::bf16>::value(pack.of[e]);
}

/// Computes one piece for kBlockHeads heads. `kv` is the cache; its other sizes are in `args`. A
/// warp goes through the piece in order. Grid: (pieces, groups of heads).
template <MlaRow kRow>
__global__ void __launch_bounds__(kThreads)
    mla_attention(const __grid_constant__ PagedAttentionArgs args,
                  const __grid_constant__ PagedLatents kv,
                  const __grid_constant__ AttentionWork work) {
  constexpr int kRowBytes = static_cast<int>(bytes_of(kRow));
  constexpr int kChunks = kRowBytes / 16;
  const AttentionSplit split = work.splits[blockIdx.x];
  if (split.begin == split.end) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int first_h = static_cast<int>(blockIdx.y) * kBlockHeads + thread / kWarp * kHeads;

  float q_latents[kHeads][kLatents], q_ropes[kHeads][kRopes];
  const float factor = args.scale * kLog2E;
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    const int h = first_h + j < args.H ? first_h + j : args.H - 1;
    const std::int64_t row = (std::int64_t{split.query} * args.H + h) * kMlaRow;
#pragma unroll
    for (int i = 0; i < kLatents; ++i)
      q_latents[j][i] = load_value(args.q, row + latent_of(i, lane), args.q_dtype) * factor;
#pragma unroll
    for (int i = 0; i < kRopes; ++i)
      q_ropes[j][i] = load_value(args.q, row + rope_of(i, lane), args.q_dtype) * factor;
  }

  const BlockId* table = args.block_table + std::int64_t{split.b} * args.M;
  const int iterations = (split.end - split.begin + kTokens - 1) / kTokens;
  std::byte* const shared = shared_memory();
  const auto copy_stage = [&](int iteration) {
    std::byte* stage = shared + iteration % kStages * kTokens * kRowBytes;
    for (int copy = thread; copy < kTokens * kChunks; copy += kThreads) {
      const int t = split.begin + iteration * kTokens + copy / kChunks;
      const bool wanted = t < split.end;
      const std::byte* from = wanted ? kv.base + table[t / kv.S].value * kv.block_stride +
                                           t % kv.S * kv.token_stride + copy % kChunks * 16
                                     : kv.base;
      copy_async<16>(stage + copy * 16, from, wanted);
    }
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < iterations) copy_stage(i);
    commit_copies();
  }
  ThreadState<kLatents> states[kHeads];
  for (int it = 0; it < iterations; ++it) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the other warps' copies have landed, and no warp reads the previous stage
    const int left = split.end - split.begin - it * kTokens;
    for (int token = 0; token < kTokens && token < left; ++token) {
      float latents[kLatents], ropes[kRopes];
      read_row<kRow>(shared + (it % kStages * kTokens + token) * kRowBytes, lane, latents, ropes);
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kLatents; ++i) dot += q_latents[j][i] * latents[i];
#pragma unroll
        for (int i = 0; i < kRopes; ++i) dot += q_ropes[j][i] * ropes[i];
#pragma unroll
        for (int distance = kWarp / 2; distance > 0; distance /= 2)
          dot += __shfl_xor_sync(kAllLanes, dot, distance);
        states[j].add(dot, latents, 1.0f);
      }
    }
    // The stage that is filled now was read one iteration ago, before the barrier above.
    if (it + kStages - 1 < iterations) copy_stage(it + kStages - 1);
    commit_copies();
  }
  wait_copies<0>();
#pragma unroll
  for (int j = 0; j < kHeads; ++j)
    if (first_h + j < args.H)
#pragma unroll
      for (int i = 0; i < kLatents; ++i)
        write_piece(args, work, split, first_h + j, latent_of(i, lane), states[j].max,
                    states[j].sum, states[j].acc[i], 1.0f);
}

/// Each warp writes one row. Grid: (groups of kThreads / kWarp tokens).
__global__ void __launch_bounds__(kThreads) mla_write(const __grid_constant__ MlaWriteArgs args) {
  const int token = static_cast<int>(blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (token >= args.T) return;
  const std::int64_t slot_id = args.slot_mapping[token];
  if (slot_id < 0) return;
  const bool is_fp8 = args.kv.row == MlaRow::fp8;
  std::byte* row = args.kv.base + slot_id / args.kv.S * args.kv.block_stride +
                   slot_id % args.kv.S * args.kv.token_stride;
  const std::int64_t first = std::int64_t{token} * kMlaLatent;
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
    float values[kVec], amax = 0;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      values[e] = load_value(args.latent, first + latent_of(group * kVec + e, lane), args.in_dtype);
      amax = fmaxf(amax, fabsf(values[e]));
    }
    const float quotient = warp_max(amax) / largest_of(Dtype::e4m3);
    const float scale = is_fp8 && quotient > 0 ? quotient : 1.0f;
    if (is_fp8 && lane == 0) store_value(row + kMlaScalesAt, group, Dtype::f32, scale);
#pragma unroll
    for (int e = 0; e < kVec; ++e)
      store_value(row, latent_of(group * kVec + e, lane), is_fp8 ? Dtype::e4m3 : Dtype::bf16,
                  values[e] / scale);
  }
  std::byte* rope = row + (is_fp8 ? kMlaRopeAt : 2 * kMlaLatent);
  for (int d = lane; d < kMlaRope; d += kWarp)
    store_value(rope, d, Dtype::bf16,
                load_value(args.rope, std::int64_t{token} * kMlaRope + d, args.in_dtype));
}

Expected<void> check(const char* what, const PagedLatents& kv, Dtype activations) {
  if (bytes_of(activations) == 1)
    return failure(Errc::unsupported,
                   std::string(what) + ": activations of " + std::string(to_string(activations)));
  if (kv.S <= 0)
    return failure(Errc::bad_argument,
                   std::string(what) + ": " + std::to_string(kv.S) + " tokens per block");
  if ((reinterpret_cast<std::uintptr_t>(kv.base) |
       static_cast<std::uintptr_t>(kv.block_stride | kv.token_stride)) %
      16)
    return failure(Errc::unsupported, std::string(what) + ": rows must be aligned to 16 bytes");
  return {};
}

/// Uses tensor cores if q has their type and there are heads enough to fill sixteen rows.
Expected<void> attend(const PagedAttentionArgs& args, const PagedLatents& kv,
                      const AttentionWork& work, CudaStream stream) {
  if (args.q_dtype == Dtype::bf16 && args.H > 2) return mma_mla(args, kv, work, stream);
  const dim3 grid{static_cast<unsigned>(work.splits_count),
                  static_cast<unsigned>((args.H + kBlockHeads - 1) / kBlockHeads), 1};
  return launch(kv.row == MlaRow::fp8 ? mla_attention<MlaRow::fp8> : mla_attention<MlaRow::bf16>,
                grid, dim3{kThreads, 1, 1}, kStages * kTokens * bytes_of(kv.row), stream, args, kv,
                work);
}

}  // namespace
}  // namespace device

Expected<void> paged_mla_cuda(const PagedMlaArgs& args, const AttentionWork& work,
                              CudaStream stream) {
  Expected<void> done = device::check("paged MLA", args.kv, args.q_dtype);
  if (!done || work.splits_count == 0) return done;
  if (args.H <= 0)
    return failure(Errc::bad_argument, "paged MLA: " + std::to_string(args.H) + " query heads");
  if (reinterpret_cast<std::uintptr_t>(args.q) % 4)
    return failure(Errc::unsupported, "paged MLA: q must be aligned to 4 bytes");
  if (work.states_count > 0 && work.states == nullptr)
    return failure(Errc::bad_argument,
                   "paged MLA: the plan has states, but the memory for them is null");
  const PagedAttentionArgs attention = as_attention(args);
  done = device::attend(attention, args.kv, work, stream);
  return done ? device::launch_combine(attention, work, stream) : done;
}

Expected<void> mla_write_cuda(const MlaWriteArgs& args, CudaStream stream) {
  Expected<void> done = device::check("MLA write", args.kv, args.in_dtype);
  if (!done || args.T == 0) return done;
  constexpr unsigned kRows = device::kThreads / device::kWarp;
  return device::launch(device::mla_write,
                        dim3{(static_cast<unsigned>(args.T) + kRows - 1) / kRows, 1, 1},
                        dim3{device::kThreads, 1, 1}, 0, stream, args);
}

}  // namespace kvhive
