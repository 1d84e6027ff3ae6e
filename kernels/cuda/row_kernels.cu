#include "kernels/row_kernels.hpp"

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packs.cuh"

namespace kvhive {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kPack = 4;   ///< elements that one thread moves at a time
constexpr int kHeads = 4;  ///< of one token; a warp rotates them by the same angles

/// Finds the thread's row and pack; rows have `packs` packs.
__device__ __forceinline__ bool find_pack(int packs, std::int64_t* row, std::int64_t* pack) {
  const int blocks_per_row = (packs + kThreads - 1) / kThreads;
  *row = blockIdx.x / blocks_per_row;
  *pack = std::int64_t{blockIdx.x % blocks_per_row} * kThreads + threadIdx.x;
  return *pack < packs;
}

__global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ EmbedArgs args) {
  const int packs = args.width / kPack;
  std::int64_t row, pack;
  if (!find_pack(packs, &row, &pack)) return;
  auto values =
      load_pack<kPack>(args.table, std::int64_t{args.tokens[row]} * packs + pack, args.dtype);
#pragma unroll
  for (int e = 0; e < kPack; ++e) values.of[e] *= args.scale;
  store_pack<Dtype::f32>(args.out, row * packs + pack, values);
}

template <Activation kActivation>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kActivation == Activation::silu) {
    return x / (1.0f + expf(-x));
  } else {                                   // (1 + tanh(y)) / 2 is 1 / (1 + exp(-2y))
    constexpr float kTwice = 1.5957691216f;  // 2 * sqrt(2 / pi)
    return x / (1.0f + expf(-kTwice * (x + 0.044715f * x * x * x)));
  }
}

template <Activation kActivation>
__global__ void __launch_bounds__(kThreads)
    gate_multiply(const __grid_constant__ GateMultiplyArgs args) {
  const int packs = args.I / kPack;
  std::int64_t row, pack;
  if (!find_pack(packs, &row, &pack)) return;
  const std::int64_t in = row * (args.in_stride / kPack) + pack;
  const float weight = args.weights == nullptr ? 1.0f : args.weights[args.pairs[row]];
  const auto gate = load_pack<kPack>(args.gate, in, args.dtype);
  const auto up = load_pack<kPack>(args.up, in, args.dtype);
  Values<kPack> out;
#pragma unroll
  for (int e = 0; e < kPack; ++e)
    out.of[e] = activated<kActivation>(weight * gate.of[e]) * (weight * up.of[e]);
  store_pack(args.out, row * packs + pack, args.dtype, out);
}

__global__ void __launch_bounds__(kThreads)
    tune_queries(const __grid_constant__ TuneQueriesArgs args) {
  const int packs = args.width / kPack;
  std::int64_t row, pack;
  if (!find_pack(packs, &row, &pack)) return;
  const float turns = floorf((static_cast<float>(args.positions[row]) + 1.0f) / args.floor);
  const float factor = logf(turns + 1.0f) * args.scale + 1.0f;
  auto values = load_pack<kPack>(args.q, row * packs + pack, args.dtype);
#pragma unroll
  for (int e = 0; e < kPack; ++e) values.of[e] *= factor;
  store_pack(args.q, row * packs + pack, args.dtype, values);
}

__global__ void __launch_bounds__(kThreads) soft_cap(const __grid_constant__ SoftCapArgs args) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.count) args.values[i] = args.cap * tanhf(args.values[i] / args.cap);
}

/// One block of threads per row. Each thread goes over its packs twice, the second time from L1.
__global__ void __launch_bounds__(kThreads)
    add_rms_norm(const __grid_constant__ AddRmsNormArgs args) {
  const std::int64_t row = args.rows == nullptr ? blockIdx.x : args.rows[blockIdx.x];
  const int packs = args.width / kPack;
  const bool adds = args.delta != nullptr, has_residual = args.residual != nullptr;
  const std::int64_t delta_packs = args.delta_stride / kPack;
  const auto load_sum = [&](int pack) {
    if (!has_residual)
      return load_pack<kPack>(args.delta, row * delta_packs + pack, args.delta_dtype);
    auto x = load_pack<Dtype::f32, kPack>(args.residual, row * packs + pack);
    if (adds) {
      const auto delta = load_pack<kPack>(args.delta, row * delta_packs + pack, args.delta_dtype);
#pragma unroll
      for (int e = 0; e < kPack; ++e) x.of[e] += delta.of[e];
    }
    return x;
  };
  float sum = 0;
  for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += kThreads) {
    const auto x = load_sum(pack);
#pragma unroll
    for (int e = 0; e < kPack; ++e) sum = fmaf(x.of[e], x.of[e], sum);
  }
  sum = block_reduce<kThreads>(sum, reinterpret_cast<float*>(shared_memory()),
                               [](float a, float b) { return a + b; });
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.width) + args.eps);
  for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += kThreads) {
    const auto x = load_sum(pack);
    const auto weight = load_pack<Dtype::f32, kPack>(args.weight, pack);
    Values<kPack> out;
#pragma unroll
    for (int e = 0; e < kPack; ++e) out.of[e] = x.of[e] * scale * weight.of[e];
    if (adds && has_residual && args.rows == nullptr)
      store_pack<Dtype::f32>(args.residual, row * packs + pack, x);
    store_pack(args.out, std::int64_t{blockIdx.x} * packs + pack, args.out_dtype, out);
  }
}

/// The sine and cosine of a pair's angle, times `factor`.
__device__ __forceinline__ void turn(float position, float frequency, float factor, float* sine,
                                     float* cosine) {
  sincosf(rounded_product(position, frequency), sine, cosine);
  *sine *= factor;
  *cosine *= factor;
}

/// One head of q (h < H) or of k.
struct Head {
  void* heads;
  std::int64_t first_pair;  ///< index in packs of two elements
  const float* norm;
};
__device__ __forceinline__ Head find_head(const RotateArgs& args, std::int64_t token, int h) {
  const bool is_q = h < args.H;
  const std::int64_t row = is_q ? token * args.H + h : token * args.G + (h - args.H);
  return {is_q ? args.q : args.k, row * (args.D / 2), is_q ? args.q_norm : args.k_norm};
}

/// A warp takes kHeads heads of one token, so that the sine of each angle is computed once for all
/// of them.
template <Dtype kDtype>
__global__ void __launch_bounds__(kThreads)
    rotate(const __grid_constant__ RotateArgs args, std::int64_t warps) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (warp >= warps) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int heads = args.H + args.G;
  const int groups = (heads + kHeads - 1) / kHeads;
  const std::int64_t token = warp / groups;
  const int first = static_cast<int>(warp % groups) * kHeads;
  const int quarter = args.D / 4;  // pairs in half a head

  float scale[kHeads];
#pragma unroll
  for (int j = 0; j < kHeads; ++j) {
    scale[j] = 1.0f;
    if (first + j >= heads) continue;
    const Head head = find_head(args, token, first + j);
    if (head.norm == nullptr) continue;
    float sum = 0;
    for (int pair = lane; pair < 2 * quarter; pair += kWarp) {
      const auto x = load_pack<kDtype, 2>(head.heads, head.first_pair + pair);
      sum = fmaf(x.of[0], x.of[0], fmaf(x.of[1], x.of[1], sum));
    }
    sum = warp_reduce(sum, [](float a, float b) { return a + b; });
    scale[j] = 1.0f / sqrtf(sum / static_cast<float>(args.D) + args.eps);
  }

  __syncwarp();  // all lanes have read the elements that other lanes overwrite next

  const auto position = static_cast<float>(args.positions[token]);
  for (int pair = lane; pair < quarter; pair += kWarp) {
    const auto frequency = load_pack<Dtype::f32, 2>(args.frequencies, pair);
    float cosine[2], sine[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) turn(position, frequency.of[e], args.factor, &sine[e], &cosine[e]);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      if (first + j >= heads) continue;
      const Head head = find_head(args, token, first + j);
      auto low = load_pack<kDtype, 2>(head.heads, head.first_pair + pair);
      auto high = load_pack<kDtype, 2>(head.heads, head.first_pair + quarter + pair);
      if (head.norm != nullptr) {
        const auto low_norm = load_pack<Dtype::f32, 2>(head.norm, pair);
        const auto high_norm = load_pack<Dtype::f32, 2>(head.norm, quarter + pair);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          low.of[e] *= scale[j] * low_norm.of[e];
          high.of[e] *= scale[j] * high_norm.of[e];
        }
      }
      Values<2> turned_low, turned_high;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        turned_low.of[e] = low.of[e] * cosine[e] - high.of[e] * sine[e];
        turned_high.of[e] = high.of[e] * cosine[e] + low.of[e] * sine[e];
      }
      store_pack<kDtype>(head.heads, head.first_pair + pair, turned_low);
      store_pack<kDtype>(head.heads, head.first_pair + quarter + pair, turned_high);
    }
  }
}

/// A thread rotates one pair. Grid: all pairs of all heads.
template <Dtype kDtype>
__global__ void __launch_bounds__(kThreads)
    rotate_pairs(const __grid_constant__ RotatePairsArgs args) {
  const int pairs = args.D / 2;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t head = index / pairs;
  const int pair = static_cast<int>(index % pairs);
  if (head >= std::int64_t{args.T} * args.H) return;
  float sine, cosine;
  turn(static_cast<float>(args.positions[head / args.H]), args.frequencies[pair], args.factor,
       &sine, &cosine);
  const auto x = load_pack<kDtype, 2>(args.from, head * (args.from_stride / 2) + pair);
  store_pack<kDtype, 2>(args.to, head * (args.to_stride / 2) + pair,
                        {{x.of[0] * cosine - x.of[1] * sine, x.of[1] * cosine + x.of[0] * sine}});
}

/// Whether all pointers are aligned to packs of `count` elements; null counts as aligned.
template <class... Pointers>
bool are_aligned(int count, Dtype dtype, const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % (count * bytes_of(dtype)) == 0) && ...);
}

Expected<void> check_rows(const char* kernel, std::int32_t rows, std::int32_t width, Dtype dtype,
                          bool is_aligned) {
  const std::string name(kernel);
  if (bytes_of(dtype) == 1)
    return failure(Errc::unsupported,
                   name + ": " + std::string(to_string(dtype)) + " is a type for the cache only");
  if (rows < 0 || width <= 0)
    return failure(Errc::bad_argument,
                   name + ": " + std::to_string(rows) + " rows of " + std::to_string(width));
  if (width % kPack != 0 || !is_aligned)
    return failure(Errc::unsupported,
                   name + ": rows of " + std::to_string(width) +
                       "; they must be multiples of 4, aligned to four elements");
  return {};
}

/// A grid with `per_row` blocks of threads for each row.
Expected<dim3> grid_of(const char* kernel, std::int64_t rows, std::int64_t per_row) {
  if (rows > 0x7fffffff / per_row)
    return failure(Errc::unsupported,
                   std::string(kernel) + ": " + std::to_string(rows) + " rows in one call");
  return dim3{static_cast<unsigned>(rows * per_row), 1, 1};
}

std::int64_t blocks_for(std::int32_t width) { return (width / kPack + kThreads - 1) / kThreads; }

}  // namespace

Expected<void> embed_cuda(const EmbedArgs& args, CudaStream stream) {
  const bool is_aligned =
      are_aligned(kPack, args.dtype, args.table) && are_aligned(kPack, Dtype::f32, args.out);
  if (auto ok = check_rows("embed", args.T, args.width, args.dtype, is_aligned); !ok) return ok;
  if (args.T == 0) return {};
  auto grid = grid_of("embed", args.T, blocks_for(args.width));
  if (!grid) return forward_error(grid);
  return launch(embed, *grid, dim3{kThreads, 1, 1}, 0, stream, args);
}

Expected<void> add_rms_norm_cuda(const AddRmsNormArgs& given, CudaStream stream) {
  AddRmsNormArgs args = given;
  if (args.delta_stride == 0) args.delta_stride = args.width;
  if (args.residual == nullptr && args.delta == nullptr)
    return failure(Errc::bad_argument, "rms norm: of neither a residual nor a delta");
  const bool is_aligned = args.delta_stride % kPack == 0 &&
                          are_aligned(kPack, Dtype::f32, args.residual, args.weight) &&
                          are_aligned(kPack, args.delta_dtype, args.delta) &&
                          are_aligned(kPack, args.out_dtype, args.out);
  for (const Dtype dtype : {args.delta_dtype, args.out_dtype})
    if (auto ok = check_rows("rms norm", args.n, args.width, dtype, is_aligned); !ok) return ok;
  if (args.n == 0) return {};
  return launch(add_rms_norm, dim3{static_cast<unsigned>(args.n), 1, 1}, dim3{kThreads, 1, 1},
                kThreads / kWarp * sizeof(float), stream, args);
}

Expected<void> rotate_cuda(const RotateArgs& args, CudaStream stream) {
  const bool is_aligned = are_aligned(2, args.dtype, args.q, args.k) &&
                          are_aligned(2, Dtype::f32, args.frequencies, args.q_norm, args.k_norm);
  if (auto ok = check_rows("rotate", args.T, args.D, args.dtype, is_aligned); !ok) return ok;
  if (args.H <= 0 || args.G <= 0)
    return failure(Errc::bad_argument,
                   "rotate: H " + std::to_string(args.H) + ", G " + std::to_string(args.G));
  if (args.T == 0) return {};
  const std::int64_t warps = std::int64_t{args.T} * ((args.H + args.G + kHeads - 1) / kHeads);
  constexpr int kWarps = kThreads / kWarp;
  auto grid = grid_of("rotate", (warps + kWarps - 1) / kWarps, 1);
  if (!grid) return forward_error(grid);
  const auto kernel = args.dtype == Dtype::bf16  ? rotate<Dtype::bf16>
                      : args.dtype == Dtype::f16 ? rotate<Dtype::f16>
                                                 : rotate<Dtype::f32>;
  return launch(kernel, *grid, dim3{kThreads, 1, 1}, 0, stream, args, warps);
}

Expected<void> rotate_pairs_cuda(const RotatePairsArgs& args, CudaStream stream) {
  const bool is_aligned = are_aligned(2, args.dtype, args.from, args.to) &&
                          (args.from_stride | args.to_stride) % 2 == 0;
  if (auto ok = check_rows("rotate pairs", args.T, args.D, args.dtype, is_aligned); !ok) return ok;
  if (args.H <= 0 || args.from_stride < args.D || args.to_stride < args.D)
    return failure(Errc::bad_argument, "rotate pairs: " + std::to_string(args.H) +
                                           " heads, from rows of " +
                                           std::to_string(args.from_stride) + " to rows of " +
                                           std::to_string(args.to_stride));
  if (args.T == 0) return {};
  const std::int64_t threads = std::int64_t{args.T} * args.H * (args.D / 2);
  auto grid = grid_of("rotate pairs", (threads + kThreads - 1) / kThreads, 1);
  if (!grid) return forward_error(grid);
  const auto kernel = args.dtype == Dtype::bf16  ? rotate_pairs<Dtype::bf16>
                      : args.dtype == Dtype::f16 ? rotate_pairs<Dtype::f16>
                                                 : rotate_pairs<Dtype::f32>;
  return launch(kernel, *grid, dim3{kThreads, 1, 1}, 0, stream, args);
}

Expected<void> tune_queries_cuda(const TuneQueriesArgs& args, CudaStream stream) {
  const bool is_aligned = are_aligned(kPack, args.dtype, args.q);
  if (auto ok = check_rows("tune queries", args.T, args.width, args.dtype, is_aligned); !ok)
    return ok;
  if (!(args.floor > 0))
    return failure(Errc::bad_argument, "tune queries: a floor of " + std::to_string(args.floor));
  if (args.T == 0) return {};
  auto grid = grid_of("tune queries", args.T, blocks_for(args.width));
  if (!grid) return forward_error(grid);
  return launch(tune_queries, *grid, dim3{kThreads, 1, 1}, 0, stream, args);
}

Expected<void> soft_cap_cuda(const SoftCapArgs& args, CudaStream stream) {
  if (args.count < 0 || !(args.cap > 0))
    return failure(Errc::bad_argument, "soft cap: " + std::to_string(args.cap) + " of " +
                                           std::to_string(args.count) + " values");
  if (args.count == 0) return {};
  auto grid = grid_of("soft cap", (args.count + kThreads - 1) / kThreads, 1);
  if (!grid) return forward_error(grid);
  return launch(soft_cap, *grid, dim3{kThreads, 1, 1}, 0, stream, args);
}

Expected<void> gate_multiply_cuda(const GateMultiplyArgs& args, CudaStream stream) {
  const bool is_aligned =
      are_aligned(kPack, args.dtype, args.gate, args.up, args.out) && args.in_stride % kPack == 0;
  if (auto ok = check_rows("gate", args.T, args.I, args.dtype, is_aligned); !ok) return ok;
  if (args.in_stride < args.I)
    return failure(Errc::bad_argument, "gate: rows of " + std::to_string(args.I) + " that are " +
                                           std::to_string(args.in_stride) + " apart");
  if (args.T == 0) return {};
  auto grid = grid_of("gate", args.T, blocks_for(args.I));
  if (!grid) return forward_error(grid);
  const auto kernel = args.activation == Activation::silu ? gate_multiply<Activation::silu>
                                                          : gate_multiply<Activation::gelu>;
  return launch(kernel, *grid, dim3{kThreads, 1, 1}, 0, stream, args);
}

}  // namespace kvhive
