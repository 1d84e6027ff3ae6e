#include "kernels/paged_attention.hpp"

#include "kernels/cuda/attention_by_dtype.hpp"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvhive {
namespace device {

namespace {

constexpr unsigned kCombineThreads = 128;
constexpr int kStatesAtOnce = 8;  ///< whose loads are in flight

/// Folds the states of one query token and head, and writes the result. Grid: (merged query tokens,
/// H).
__global__ void __launch_bounds__(kCombineThreads)
    combine(const __grid_constant__ PagedAttentionArgs args,
            const __grid_constant__ AttentionWork work) {
  const SplitQuery query = work.merged[blockIdx.x];
  if (query.states == 0) return;
  const int h = static_cast<int>(blockIdx.y);
  const float v_scale = fixed_scale(args.kv.scales, args.kv.scales.v, h / (args.H / args.kv.G));
  const std::int64_t row = std::int64_t{query.query} * args.H + h;
  for (int d = static_cast<int>(threadIdx.x); d < args.kv.D; d += kCombineThreads) {
    float max = -kInfinity, sum = 0, acc = 0;
    for (int first = 0; first < query.states; first += kStatesAtOnce) {
      float maxima[kStatesAtOnce], sums[kStatesAtOnce], accs[kStatesAtOnce];
#pragma unroll
      for (int i = 0; i < kStatesAtOnce; ++i) {
        if (first + i >= query.states) break;
        const StatePlace place = state_place(args, work, query.first_state + first + i, h);
        maxima[i] = place.max[0];
        sums[i] = place.max[1];
        accs[i] = place.acc[d];
      }
#pragma unroll
      for (int i = 0; i < kStatesAtOnce; ++i) {
        if (first + i >= query.states) break;
        const Fold fold(max, maxima[i]);
        max = fold.max;
        sum = fold(sum, sums[i]);
        acc = fold(acc, accs[i]);
      }
    }
    const Finish end = finish(args, h, max, sum, v_scale);
    store_value(args.out, row * args.kv.D + d, args.q_dtype, acc * end.factor);
    if (d == 0 && args.lse != nullptr) args.lse[row] = end.lse;
  }
}

Expected<void> refused(const std::string& what) {
  return failure(Errc::unsupported, "paged attention: " + what);
}

/// Refuses what no kernel here computes.
Expected<void> check(const PagedAttentionArgs& args) {
  const PagedKv& kv = args.kv;
  const std::string dtype(to_string(kv.dtype));
  if (kv.layout == PageLayout::packed) return refused("packed pages are for the CPU only");
  if (kv.D < 8 || kv.D > 256 || kv.D % 8 != 0)
    return refused("head size " + std::to_string(kv.D) + "; it must be 8..256, a multiple of 8");
  if (kv.S <= 0 || (kv.S & (kv.S - 1)) != 0)
    return refused(std::to_string(kv.S) + " tokens per block; it must be a power of two");
  if (kv.G <= 0 || args.H <= 0 || args.H % kv.G != 0)
    return refused(std::to_string(args.H) + " query heads on " + std::to_string(kv.G) +
                   " kv heads");
  if (args.H > 65535)
    return refused(std::to_string(args.H) + " query heads; at most 65535 are supported");
  if (bytes_of(args.q_dtype) == 1)
    return refused("queries of " + std::string(to_string(args.q_dtype)));
  const std::size_t needed = bytes_of(kv.dtype) == 1 && !is_for_tensor_cores(args) ? 8 : 16;
  if (alignment_of(kv) < needed)
    return refused("rows of " + dtype + " aligned to " + std::to_string(alignment_of(kv)) +
                   " bytes; " + std::to_string(needed) + " are needed");
  const bool per_token = kv.scales.are_per_token();
  if (per_token && bytes_of(kv.dtype) != 1) return refused("scales per token for " + dtype);
  if (per_token && (kv.scales.k == nullptr || kv.scales.v == nullptr))
    return failure(
        Errc::bad_argument,
        "paged attention: each token has a scale, but the pointer to the scales is null");
  if (!per_token && kv.scales.block_stride != 0) return refused("scales per block");
  if (is_for_tensor_cores(args) &&
      (reinterpret_cast<std::uintptr_t>(args.q) | reinterpret_cast<std::uintptr_t>(args.out)) % 4)
    return refused("q and out must be aligned to 4 bytes on tensor cores");
  return {};
}

Expected<void> attend(const PagedAttentionArgs& args, const AttentionWork& work,
                      CudaStream stream) {
  if (is_for_tensor_cores(args)) switch (args.kv.dtype) {
      case Dtype::bf16: return mma_attention_of<Dtype::bf16>(args, work, stream);
      case Dtype::f16: return mma_attention_of<Dtype::f16>(args, work, stream);
      case Dtype::e4m3: return mma_attention_of<Dtype::e4m3>(args, work, stream);
      case Dtype::e5m2: return mma_attention_of<Dtype::e5m2>(args, work, stream);
      case Dtype::int8: return mma_attention_of<Dtype::int8>(args, work, stream);
      case Dtype::f32: break;
    }
  switch (args.kv.dtype) {
    case Dtype::f32: return simt_attention_of<Dtype::f32>(args, work, stream);
    case Dtype::bf16: return simt_attention_of<Dtype::bf16>(args, work, stream);
    case Dtype::f16: return simt_attention_of<Dtype::f16>(args, work, stream);
    case Dtype::e4m3: return simt_attention_of<Dtype::e4m3>(args, work, stream);
    case Dtype::e5m2: return simt_attention_of<Dtype::e5m2>(args, work, stream);
    case Dtype::int8: return simt_attention_of<Dtype::int8>(args, work, stream);
  }
  return refused("elements of an unknown type");
}

}  // namespace

Expected<void> launch_combine(const PagedAttentionArgs& args, const AttentionWork& work,
                              CudaStream stream) {
  if (work.merged_count == 0) return {};
  const dim3 grid{static_cast<unsigned>(work.merged_count), static_cast<unsigned>(args.H), 1};
  return launch(combine, grid, dim3{kCombineThreads, 1, 1}, 0, stream, args, work);
}

}  // namespace device

Expected<void> paged_attention_cuda(const PagedAttentionArgs& args, const AttentionWork& work,
                                    CudaStream stream) {
  Expected<void> done = device::check(args);
  if (!done || work.splits_count == 0) return done;
  if (work.states_count > 0 && work.states == nullptr)
    return failure(Errc::bad_argument,
                   "paged attention: the plan has states, but the memory for them is null");
  if (is_for_tensor_cores(args) != (work.narrow_tiles + work.wide_tiles > 0))
    return failure(Errc::bad_argument, "paged attention: the plan is for other shapes");
  done = device::attend(args, work, stream);
  return done ? device::launch_combine(args, work, stream) : done;
}

}  // namespace kvhive
